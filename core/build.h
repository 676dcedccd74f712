/* SPDX-License-Identifier: Apache-2.0 */
/* Which build this is. Two programs of one version may compute differently; two with the same
 * identity were made of the same sources by the same compilers with the same flags. */
#ifndef STW_CORE_BUILD_H
#define STW_CORE_BUILD_H

/** 16 lower-case hexadecimal digits: a hash of the contents of the sources that compute, and of the
 * compilers and their flags (cmake/StwIdentity.cmake). No folder and no date is in it. Static;
 * any thread. */
const char *stw_build_identity(void);

#endif
