//! Keys of `config.json` that no forward pass feels, whatever they say or as long as they say one of a few values.
//!
//! Older versions of transformers wrote every attribute of a configuration into the file, those of text generation, of
//! training and of other kinds of models included. A key that a family reads is not looked up here.

use serde_json::Value;

/// Keys that never change the forward pass.
const ALWAYS: &[&str] = &[
    // Where the files come from, which code reads them, and how it runs them.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_from_model_config",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "model_max_length",
    "model_type",
    "pretraining_tp",
    "tf_legacy_loss",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention",
    "use_flash_attention_2",
    "xla_device",
    // What a call returns.
    "logits_to_keep",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    // Tokens.
    "begin_suppress_tokens",
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_decoder_ids",
    "forced_eos_token_id",
    "mask_token_id",
    "pad_token_id",
    "sep_token_id",
    "suppress_tokens",
    "unk_token_id",
    // Defaults of text generation.
    "bad_words_ids",
    "cache_implementation",
    "constraints",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "guidance_scale",
    "length_penalty",
    "low_memory",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "penalty_alpha",
    "prefix",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "stop_strings",
    "temperature",
    "token_healing",
    "top_k",
    "top_p",
    "typical_p",
    "watermarking_config",
    // Training.
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "embd_pdrop",
    "embedding_dropout",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_range",
    "resid_pdrop",
    "residual_dropout",
    "router_aux_loss_coef",
    "router_jitter_noise",
    // Heads for classification, whose tensors would be unaccounted for.
    "_num_labels",
    "classifier_dropout",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // How long a sequence may be, which the class reads where positions depend on it.
    "max_position_embeddings",
    "max_sequence_length",
    "seq_length",
    "tokenizer_model_max_length",
    // The first layer with a window; without windows it says nothing, and classes with windows read it.
    "max_window_layers",
];

/// What a key may say, where other values are of another forward pass.
enum Accepted {
    False,
    True,
    /// `false` or `true`: both are what a decoder is.
    Flag,
    /// No list and no object with anything in it.
    Empty,
    /// The number 1.
    One,
}

/// Keys that change nothing as long as they say this.
const WITH_VALUE: &[(&str, Accepted)] = &[
    ("add_cross_attention", Accepted::False),
    // A decoder with cross attention says so by the key above.
    ("is_decoder", Accepted::Flag),
    ("is_encoder_decoder", Accepted::False),
    ("is_llama_config", Accepted::True),
    ("pruned_heads", Accepted::Empty),
    ("rope_interleaved", Accepted::False),
    ("rotary_scaling_factor", Accepted::One),
    ("tie_encoder_decoder", Accepted::False),
    ("use_mrope", Accepted::False),
    ("use_sliding_window", Accepted::False),
];

impl Accepted {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Self::False => *value == Value::Bool(false),
            Self::True => *value == Value::Bool(true),
            Self::Flag => value.is_boolean(),
            Self::Empty => match value {
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
            },
            Self::One => value.as_f64() == Some(1.0),
        }
    }

    fn expected(&self) -> &'static str {
        match self {
            Self::False => "false or absent",
            Self::True => "true or absent",
            Self::Flag => "true or false",
            Self::Empty => "empty or absent",
            Self::One => "1 or absent",
        }
    }
}

/// What is known of a key that no family reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// It changes nothing.
    Harmless,
    /// It would change nothing if it said this.
    UnlessItSays(&'static str),
    /// Nothing.
    Unknown,
}

/// What is known of a key with this value.
pub(crate) fn harm(key: &str, value: &Value) -> Harm {
    if is_always_harmless(key) {
        return Harm::Harmless;
    }
    match WITH_VALUE.iter().find(|(known, _)| *known == key) {
        None => Harm::Unknown,
        Some((_, accepted)) if accepted.holds(value) => Harm::Harmless,
        Some((_, accepted)) => Harm::UnlessItSays(accepted.expected()),
    }
}

/// Whether a key changes nothing whatever it says.
pub(crate) fn is_always_harmless(key: &str) -> bool {
    ALWAYS.contains(&key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_stands_in_one_list() {
        for (key, _) in WITH_VALUE {
            assert!(!is_always_harmless(key), "{key}");
        }
        let mut sorted = ALWAYS.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), ALWAYS.len());
    }

    #[test]
    fn other_values_are_of_another_model() {
        for (key, accepted) in WITH_VALUE {
            let values = [json!(true), json!(false), json!({}), json!([]), json!(1.0)];
            let taken: Vec<bool> = values
                .iter()
                .map(|value| harm(key, value) == Harm::Harmless)
                .collect();
            let want = match accepted {
                Accepted::False => [false, true, false, false, false],
                Accepted::True => [true, false, false, false, false],
                Accepted::Flag => [true, true, false, false, false],
                Accepted::Empty => [false, false, true, true, false],
                Accepted::One => [false, false, false, false, true],
            };
            assert_eq!(taken, want, "{key}");
            let other = harm(key, &json!({ "7": [1] }));
            assert_eq!(other, Harm::UnlessItSays(accepted.expected()), "{key}");
        }
        assert_eq!(harm("attention_sauce", &json!(false)), Harm::Unknown);
    }
}
