//! What a checkpoint means: ModelSpec, tensor roles, families, tokenizer, chat template
