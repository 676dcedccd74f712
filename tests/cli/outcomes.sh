#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Public reports of runs that fitted, ran out of memory or were killed: the verdict on each, as tests/measured/outcomes.csv says.
. "$STW_SOURCE_DIR/tests/cli/_lib.sh"
examples=$STW_SOURCE_DIR/models/examples
llama() { # FILE hidden layers heads mlp
    cat >"$1" <<END
{"model_type": "llama", "hidden_size": $2, "num_hidden_layers": $3, "num_attention_heads": $4, "num_key_value_heads": $4, "intermediate_size": $5,
 "vocab_size": 32000, "tie_word_embeddings": false, "rms_norm_eps": 1e-05, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
END
}
llama llama-33b.json 6656 60 52 17920
llama llama-13b-20.json 5120 20 40 13824
cat >gpt-100b.json <<END
{"model_type": "gpt2", "n_embd": 10240, "n_head": 80, "n_layer": 80, "n_positions": 2048, "vocab_size": 50257, "tie_word_embeddings": true,
 "layer_norm_epsilon": 1e-05}
END
cp "$examples/glm-5.json" "$examples/llama-7b-10-layers.json" .

code_of() {
    case $1 in fits) echo 0 ;; at_risk) echo 9 ;; does_not_fit) echo 4 ;; refused) echo 3 ;; *) echo "?" ;; esac
}
rows=0 told=0 bad=0
grep -v '^#' "$STW_SOURCE_DIR/tests/measured/outcomes.csv" | tail -n +2 >rows.csv
while IFS=, read -r row reported verdict of model cluster run settings rest; do
    [ -n "$rest" ] || fail "$row: no source"
    [ "$verdict" != - ] || continue
    set -- --model "$model" --cluster "$cluster"
    [ -z "$run" ] || set -- "$@" --run "$examples/$run"
    for setting in $settings; do set -- "$@" --set "$setting"; done
    code=0
    "$STOWAGE" plan "$@" >plan.txt 2>plan.err </dev/null || code=$?
    [ "$code" = "$(code_of "$verdict")" ] || { sed -n 1,6p plan.txt plan.err; echo "$row: exit $code, expected $verdict"; bad=$((bad + 1)); }
    [ -z "$of" ] || sed -n 1,8p plan.txt | grep -q -i "may run out of .*$of\|$of is over by" || { sed -n 1,6p plan.txt; echo "$row: not of $of"; bad=$((bad + 1)); }
    # a run that failed is never said to fit
    case $reported in fits) ;; *) [ "$code" != 0 ] || fail "$row was $reported, and is said to fit" ;; esac
    rows=$((rows + 1))
    [ "$reported" = fits ] || told=$((told + 1))
done <rows.csv
[ "$bad" = 0 ] || fail "$bad of $rows verdicts"
[ "$rows" -ge 25 ] && [ "$told" -ge 10 ] || fail "$rows rows, $told of runs that failed"
echo "outcomes: ok ($rows rows, $told of runs that failed)"
