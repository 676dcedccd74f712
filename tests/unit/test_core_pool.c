/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pool.h"
#include "tests/unit/testing.h"

/* An array that begins a chunk which other objects fill to its end is not alone there: growing it
 * leaves them where they are. */
static void what_shares_a_chunk_stays(void) {
    enum { CHUNK = 16 * 1024, ARRAY = CHUNK / 8 };
    stw_pool *pool = stw_pool_new();
    char *array = NULL, *objects[8] = {NULL};
    CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
    for (size_t chunk = 1024; chunk < CHUNK; chunk *= 2) /* until chunks are that large */
        for (size_t used = 0; used < chunk; used += chunk / 8)
            (void)stw_pool_alloc(pool, chunk / 8);
    array = stw_pool_alloc(pool, ARRAY);
    for (int i = 0; i < 7; i++) {
        objects[i] = stw_pool_alloc(pool, ARRAY);
        CU_ASSERT_PTR_NOT_NULL_FATAL(objects[i]);
        memset(objects[i], i, ARRAY);
    }
    CU_ASSERT_EQUAL(objects[6] - array, 7 * ARRAY);
    size_t capacity = ARRAY;
    char *grown = stw_pool_regrow(pool, array, ARRAY, ARRAY + 1, &capacity, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(grown);
    char *later = stw_pool_regrow(pool, NULL, 0, 64 * CHUNK, &(size_t){0}, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(later);
    memset(later, 0x55, 64 * CHUNK);
    CU_ASSERT_EQUAL(capacity, 2 * ARRAY);
    CU_ASSERT(grown + capacity <= array || grown >= array + CHUNK); /* not where they are */
    for (int i = 0; i < 7; i++) CU_ASSERT_EQUAL(objects[i][ARRAY - 1], i);
    stw_pool_free(pool);
}

int main(void) {
    static const stw_test tests[] = {{"what shares a chunk stays", what_shares_a_chunk_stays}};
    return stw_test_run_all("pool", tests, sizeof tests / sizeof tests[0]);
}
