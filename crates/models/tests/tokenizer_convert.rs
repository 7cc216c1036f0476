//! Tokenizers between Hugging Face files and GGUF keys, both ways.
#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;

use larql_models::tokenizer::{
    Bos, EncodeSpecial, GgufVocab, HfTokenizerConfig, HfTokenizerFiles, SpecialText, Tokenizer,
    TokenizerError, TokenizerWarning, gguf_metadata, hf_folder,
};
use serde_json::{Value, json};

const TEXTS: &[&str] = &[
    "",
    " ",
    "The capital of France is",
    "re-use  of\n\n\n 123",
    "Caf\u{e9} \u{65e5}\u{672c} \u{1f60a}",
    "<bos><eos> (x+y)!",
    "   leading, trailing   ",
];

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode(text, EncodeSpecial::Plain, Bos::Model)
        .unwrap()
}

fn config(tokenizer_config: Value) -> HfTokenizerConfig {
    HfTokenizerConfig {
        tokenizer_config: Some(tokenizer_config),
        generation_config: None,
        config: None,
        chat_template: None,
    }
}

fn convert(
    json: &str,
    config: &HfTokenizerConfig,
    d_vocab: u32,
) -> Result<(GgufVocab, Vec<String>), TokenizerError> {
    let files = HfTokenizerFiles {
        tokenizer_json: json.as_bytes(),
        config,
        sentencepiece: None,
    };
    let converted = gguf_metadata(&files, d_vocab)?;
    Ok((
        GgufVocab::from_metadata(&converted.metadata)?,
        converted.notes,
    ))
}

fn atlas() -> (String, HfTokenizerConfig) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/atlas");
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let mut config = config(serde_json::from_str(&text("tokenizer_config.json")).unwrap());
    config.generation_config = serde_json::from_str(&text("generation_config.json")).unwrap();
    config.chat_template = Some("{{ messages[0].content }}".to_owned());
    (text("tokenizer.json"), config)
}

#[test]
fn ranked_merges_become_scores_that_give_the_same_ids() {
    let (json, config) = atlas();
    let original = Tokenizer::from_json(json.as_bytes(), &config).unwrap();
    let (vocab, notes) = convert(&json, &config, 2600).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(
        (vocab.model.as_str(), vocab.pre.as_deref()),
        ("llama", Some("default"))
    );
    assert_eq!(vocab.tokens.len(), 2600);
    assert_eq!(&vocab.tokens[2583], "[PAD2583]");
    let types = vocab.token_types.as_ref().unwrap();
    assert_eq!((types[2], types[3], types[2599]), (3, 2, 5));
    assert_eq!(
        (vocab.bos, vocab.eos, vocab.unk, vocab.pad),
        (Some(2), Some(1), Some(3), Some(0))
    );
    assert_eq!(
        (vocab.add_bos, vocab.add_space_prefix),
        (Some(true), Some(false))
    );
    assert_eq!(
        vocab.chat_template.as_deref(),
        Some("{{ messages[0].content }}")
    );
    // The first merge is `a` and `n`.
    let an = vocab.tokens.iter().position(|t| t == "an").unwrap();
    assert_eq!(
        vocab.scores.as_ref().unwrap()[an].to_bits(),
        (-0.0_f32).to_bits()
    );
    let converted = Tokenizer::from_gguf(vocab).unwrap();
    for text in TEXTS {
        assert_eq!(ids(&converted, text), ids(&original, text), "{text:?}");
    }
}

#[test]
fn a_vocabulary_with_scores_survives_both_ways() {
    let (json, config) = atlas();
    let (vocab, _) = convert(&json, &config, 2583).unwrap();
    let folder = hf_folder(vocab.clone()).unwrap();
    assert_eq!(
        folder.tokenizer_config,
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "add_bos_token": true,
            "add_eos_token": false,
            "clean_up_tokenization_spaces": false,
        })
    );
    assert_eq!(folder.eos, [1]);
    // Other readers refuse keys that they do not know.
    let file: Value = serde_json::from_str(&folder.tokenizer_json).unwrap();
    assert!(file.get("sentencepiece").is_none());
    let mut config = self::config(folder.tokenizer_config);
    config.chat_template = folder.chat_template;
    let again = Tokenizer::from_json(folder.tokenizer_json.as_bytes(), &config).unwrap();
    let direct = Tokenizer::from_gguf(vocab.clone()).unwrap();
    for text in TEXTS {
        assert_eq!(ids(&again, text), ids(&direct, text), "{text:?}");
        assert_eq!(again.decode(&ids(&again, text), SpecialText::Skip), *text);
    }
    let files = HfTokenizerFiles {
        tokenizer_json: folder.tokenizer_json.as_bytes(),
        config: &config,
        sentencepiece: folder.sentencepiece.as_deref(),
    };
    let back = gguf_metadata(&files, 2583).unwrap();
    let back = GgufVocab::from_metadata(&back.metadata).unwrap();
    assert_eq!(back.tokens, vocab.tokens);
    assert_eq!(back.token_types, vocab.token_types);
    assert_eq!(back.chat_template, vocab.chat_template);
    // Markers have no score of their own.
    let scores = |v: &GgufVocab| v.scores.as_ref().unwrap()[4..].to_vec();
    assert_eq!(scores(&back), scores(&vocab));
}

/// A byte-level vocabulary: the printable ASCII, a space, a line break, `in` and `ing`, two markers.
fn byte_level(pre_tokenizer: Value) -> Value {
    let mut pieces: Vec<String> = (0x21..0x7f)
        .filter_map(char::from_u32)
        .map(String::from)
        .collect();
    pieces.extend(["\u{120}", "\u{10a}", "in", "ing", "12"].map(String::from));
    let n = pieces.len();
    let vocab: serde_json::Map<String, Value> = pieces
        .into_iter()
        .enumerate()
        .map(|(id, text)| (text, json!(id)))
        .collect();
    let marker = |id: usize, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        })
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [marker(n, "<|end|>", true), marker(n + 2, "<tool>", false)],
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": ["i n", "in g", "1 2"],
        },
    })
}

fn gpt2_words() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true })
}

#[test]
fn a_byte_level_vocabulary_survives_both_ways() {
    let json = byte_level(gpt2_words());
    let config = config(json!({ "eos_token": "<|end|>" }));
    let original = Tokenizer::from_json(json.to_string().as_bytes(), &config);
    // Id 100 belongs to nobody, so the crate numbers the second marker 100.
    assert!(matches!(
        original.unwrap_err(),
        TokenizerError::AddedTokenId {
            declared: 101,
            got: 100,
            ..
        }
    ));
    let mut json = json;
    json["added_tokens"][1]["id"] = json!(100);
    let json = json.to_string();
    let original = Tokenizer::from_json(json.as_bytes(), &config).unwrap();
    let (vocab, notes) = convert(&json, &config, 103).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(
        (vocab.model.as_str(), vocab.pre.as_deref()),
        ("gpt2", Some("gpt-2"))
    );
    assert_eq!(vocab.merges.as_deref().unwrap(), ["i n", "in g", "1 2"]);
    assert_eq!(
        vocab.tokens.iter().skip(99).collect::<Vec<_>>(),
        ["<|end|>", "<tool>", "[PAD101]", "[PAD102]"]
    );
    assert_eq!(vocab.token_types.as_ref().unwrap()[98..], [1, 3, 4, 5, 5]);
    assert_eq!(
        (vocab.eos, vocab.bos, vocab.add_bos),
        (Some(99), None, Some(false))
    );
    let folder = hf_folder(vocab.clone()).unwrap();
    assert!(folder.sentencepiece.is_none());
    let again = Tokenizer::from_json(
        folder.tokenizer_json.as_bytes(),
        &self::config(folder.tokenizer_config),
    )
    .unwrap();
    let direct = Tokenizer::from_gguf(vocab).unwrap();
    for text in [
        "",
        "singing in 1212",
        "<tool>a<|end|>",
        " x\n\n y",
        "don't 123-4",
    ] {
        assert_eq!(ids(&direct, text), ids(&original, text), "{text:?}");
        assert_eq!(ids(&again, text), ids(&original, text), "{text:?}");
    }
    assert_eq!(ids(&direct, "<tool>ing"), [100, 97]);
}

#[test]
fn a_rule_without_a_name_is_refused() {
    let words = json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": "[aeiou]+" }, "behavior": "Isolated", "invert": false },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ]});
    let mut json = byte_level(words);
    json["added_tokens"][1]["id"] = json!(100);
    let error = convert(&json.to_string(), &config(json!({})), 101).unwrap_err();
    assert!(matches!(&error, TokenizerError::UnrecognizedPre { rule } if rule.contains("aeiou")));
}

#[test]
fn what_the_splitting_rule_does_not_show_is_found_by_the_probes() {
    let mut json = byte_level(gpt2_words());
    json["added_tokens"][1]["id"] = json!(100);
    json["normalizer"] = json!({ "type": "Lowercase" });
    let error = convert(&json.to_string(), &config(json!({})), 101).unwrap_err();
    let TokenizerError::ProbeMismatch {
        text,
        original,
        converted,
    } = error
    else {
        panic!("{error}");
    };
    assert!(text.starts_with("I'm"), "{text}");
    // `i` and `I`, from the `!` on.
    assert_eq!((original[0], converted[0]), (72, 40));
}

#[test]
fn other_models_and_too_few_rows_are_refused_by_name() {
    let mut json = byte_level(gpt2_words());
    json["added_tokens"][1]["id"] = json!(100);
    let error = convert(&json.to_string(), &config(json!({})), 100).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tokenizer has 101 ids, the embedding has 100 rows"
    );
    json["model"]["end_of_word_suffix"] = json!("</w>");
    let error = convert(&json.to_string(), &config(json!({})), 101).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.json: model.end_of_word_suffix is `</w>`, a GGUF vocabulary can hold only null"
    );
    json["model"] =
        json!({ "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]] });
    json["added_tokens"] = json!([]);
    let error = convert(&json.to_string(), &config(json!({})), 101).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.json: model.type is `Unigram`, a GGUF vocabulary can hold only BPE with merges"
    );
}

/// The switches of a GGUF are what the files do to a text, and what is written of a GGUF does the same.
#[test]
fn what_stands_around_a_text_is_stated_both_ways() {
    let mut json = byte_level(gpt2_words());
    json["added_tokens"][1]["id"] = json!(100);
    json["added_tokens"][1]["special"] = json!(true);
    let special = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [special("<tool>"), text("A"), special("<|end|>")],
        "pair": [text("A"), text("B")],
        "special_tokens": {
            "<tool>": { "id": "<tool>", "ids": [100], "tokens": ["<tool>"] },
            "<|end|>": { "id": "<|end|>", "ids": [99], "tokens": ["<|end|>"] },
        },
    });
    let class = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": false });
    let (vocab, notes) = convert(&json.to_string(), &config(class), 101).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!((vocab.bos, vocab.add_bos), (Some(100), Some(true)));
    assert_eq!((vocab.eos, vocab.add_eos), (Some(99), Some(true)));
    let folder = hf_folder(vocab).unwrap();
    let file: Value = serde_json::from_str(&folder.tokenizer_json).unwrap();
    assert_eq!(
        file["post_processor"]["single"],
        json!([special("<tool>"), text("A"), special("<|end|>")])
    );
    let config = config(folder.tokenizer_config);
    let again = Tokenizer::from_json(folder.tokenizer_json.as_bytes(), &config).unwrap();
    assert_eq!(again.warnings(), [TokenizerWarning::EndLeftOut]);
    assert!(again.special().add_eos);
    // Here too a class may follow the switches in place of the file.
    let class = json!({
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": false,
    });
    let (vocab, _) = convert(&json.to_string(), &self::config(class), 101).unwrap();
    assert_eq!((vocab.add_bos, vocab.add_eos), (Some(false), Some(false)));
}

#[test]
fn what_gguf_cannot_say_is_noted() {
    let mut json = byte_level(gpt2_words());
    json["added_tokens"][1]["id"] = json!(100);
    json["added_tokens"][1]["rstrip"] = json!(true);
    json["normalizer"] = json!({ "type": "NFC" });
    let mut config = config(json!({
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<|end|>", "add_bos_token": true,
    }));
    config.generation_config = Some(json!({ "eos_token_id": [99, 3, 4] }));
    let (vocab, notes) = convert(&json.to_string(), &config, 101).unwrap();
    assert_eq!(
        (vocab.bos, vocab.add_bos, vocab.eos, vocab.eot),
        (Some(99), Some(true), Some(99), Some(3))
    );
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert_eq!(
        notes[0],
        "the ids [4] end generation, GGUF has no key for so many"
    );
    assert!(notes[1].contains("NFC"), "{notes:?}");
    assert_eq!(
        notes[2],
        "1 added tokens have the flag rstrip, GGUF has no key for it"
    );
}
