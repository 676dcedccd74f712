/* SPDX-License-Identifier: Apache-2.0 */
/* Every key has an effect or is refused: a model with experts. See key_test.h. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "tests/unit/key_test.h"

int main(void) { return key_test_main("plan keys, moe", 1); }
