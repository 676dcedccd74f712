/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON writer. Failed allocations and invalid call sequences (BUG) are recorded and reported
 * once, by stw_json_finish. A NULL writer is accepted everywhere. Numbers are written in the
 * shortest form that reads back as the same value; a document does not depend on the version of a
 * library. The caller owns the writer until stw_json_finish; one thread at a time uses it.
 *
 *     stw_json *j = stw_json_new();
 *     stw_json_begin_object(j, NULL);
 *     stw_json_string(j, "schema", "stowage.plan/1");
 *     stw_json_begin_array(j, "ranks"); ... stw_json_end(j);
 *     stw_json_end(j);
 *     status = stw_json_finish(j, &text, err);   (frees j) */
#ifndef STW_CORE_JSON_H
#define STW_CORE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/text.h"

typedef struct stw_json stw_json;

stw_json *stw_json_new(void);
/* `key` is NULL inside arrays and for the root. */
void stw_json_begin_object(stw_json *json, const char *key);
void stw_json_begin_array(stw_json *json, const char *key);
void stw_json_end(stw_json *json);
void stw_json_string(stw_json *json, const char *key, const char *value); /* NULL writes null */
void stw_json_u64(stw_json *json, const char *key, uint64_t value);  /* above 2^63-1: "unlimited" */
void stw_json_double(stw_json *json, const char *key, double value); /* not finite: null */
void stw_json_bool(stw_json *json, const char *key, bool value);
void stw_json_null(stw_json *json, const char *key);
/** Text of the document with a final newline, appended to `out`; frees `json` in every case. */
STW_MUST_USE stw_status stw_json_finish(stw_json *json, stw_text *out, stw_error *err);

#endif
