/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the keys of a config.json that no row of its template reads. A template describes one
 * architecture. A key that adds other parameters (experts in a config of model_type llama) belongs
 * to another architecture, and the counts would be silently wrong. */
#ifndef STW_MODELS_CONFIG_KEYS_H
#define STW_MODELS_CONFIG_KEYS_H

#include "models/template.h"

typedef enum stw_key_use {
    STW_KEY_READ,     /* read by the template, or built into it (its rows `key`) */
    STW_KEY_HARMLESS, /* known to add no parameters: token ids, rates, dropout, rotary tables */
    STW_KEY_INERT,    /* its value (null, false, 0, empty) adds no parameters; others could */
    STW_KEY_PLACES,   /* adds parameters that the template does not make */
    STW_KEY_UNKNOWN
} stw_key_use;

/** Returns the use of a key with its value in a template. */
stw_key_use stw_config_key_use(const stw_template *template, const stw_node *member);
/** Check the root and the objects that `include` rows name. BAD_INPUT at the first key that adds
 * parameters. One warning names the unknown keys. */
STW_MUST_USE stw_status stw_config_check_keys(const stw_template *template, const stw_tree *config,
                                              stw_error *err);

#endif
