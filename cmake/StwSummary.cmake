# SPDX-License-Identifier: Apache-2.0
# One line per decision, at the end of configuring.

if(STW_WITH_CUDA)
    list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
    set(cuda "${STW_CUDA_VERSION} for ${architectures}")
elseif(STW_CUDA STREQUAL "OFF")
    set(cuda "off")
else()
    set(cuda "left out: ${STW_CUDA_WHY_NOT}")
endif()
message(STATUS "stowage ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
message(STATUS "  CUDA:  ${cuda}")
message(STATUS "  NCCL:  ${STW_WITH_NCCL}")
message(STATUS "  MPI:   ${STW_WITH_MPI}")
message(STATUS "  uring: ${STW_WITH_URING}")
message(STATUS "  tests: ${STW_TESTS}")
