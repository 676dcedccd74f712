/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a config.json that no row of its template reads. A template describes an architecture;
 * a key that would give the model other parameters (experts in a config of model_type llama) means
 * that the template is of another one, and counts would be wrong without a word. */
#ifndef STW_MODELS_CONFIG_KEYS_H
#define STW_MODELS_CONFIG_KEYS_H

#include "models/template.h"

typedef enum stw_key_use {
    STW_KEY_READ,     /* by the template, or built into it (its rows `key`) */
    STW_KEY_HARMLESS, /* known to place no parameters: token ids, rates, dropout, rotary tables */
    STW_KEY_INERT,    /* it could place parameters, with another value: null, false, 0, empty */
    STW_KEY_PLACES,   /* it places parameters that the template does not make */
    STW_KEY_UNKNOWN
} stw_key_use;

/** What a key with a value is to a template. */
stw_key_use stw_config_key_use(const stw_template *template, const stw_node *member);
/** Check the root and the objects that `include` rows name. BAD_INPUT at the first key that places
 * parameters; the unknown ones are named in one warning. */
STW_MUST_USE stw_status stw_config_check_keys(const stw_template *template, const stw_tree *config,
                                              stw_error *err);

#endif
