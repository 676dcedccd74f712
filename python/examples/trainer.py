# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: it makes the optimizer with its own groups (no decay for norms and biases) and the schedule. Runs, saves, resumes, and checks that the
resumed run has the bits of the uninterrupted one.

python trainer.py [FOLDER]
"""

import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

from stowage.torch import AdamW


def build():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config)


def data(n=64):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 512, (n, 32), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(folder, resume=None):
    model = build()
    arguments = TrainingArguments(folder, weight_decay=0.1, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=8,
                                  max_grad_norm=0.0,  # the optimizer clips
                                  save_steps=4, logging_steps=4, report_to=[], seed=3, disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=data(),
                      optimizer_cls_and_kwargs=(AdamW, {"lr": 1e-3, "clip_norm": 1.0}))  # transformers 4.47 or newer
    optimizer = trainer.create_optimizer()
    optimizer.hide_behind(model)
    trainer.train(resume_from_checkpoint=resume)
    return model, optimizer


folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="stowage-trainer-")
whole, first = train(folder)
resumed, second = train(folder, resume=f"{folder}/checkpoint-4")
states = [optimizer.state_dict()["state"].values() for optimizer in (first, second)]
same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters()))
same = same and all(torch.equal(a[key], b[key]) for a, b in zip(*states) for key in a)
print(f"weight decay of the groups {[group['weight_decay'] for group in first.param_groups]}")
print(f"gradient norm of the last step {first.grad_norm:.4f}; resumed run: {'the same bits' if same else 'DIFFERENT'}")
sys.exit(0 if same else 1)
