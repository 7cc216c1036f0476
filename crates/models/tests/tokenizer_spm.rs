//! SentencePiece vocabularies built by hand: ids are derived on paper from the scores.
#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use larql_models::tokenizer::{
    Bos, EncodeSpecial, GgufVocab, SpecialText, Tokenizer, TokenizerError,
};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

/// `(text, score, type)` by id.
const TOKENS: &[(&str, f32, i32)] = &[
    ("<unk>", 0.0, 2),                          // 0
    ("<s>", 0.0, CONTROL),                      // 1
    ("</s>", 0.0, CONTROL),                     // 2
    ("\u{2581}", -9.0, NORMAL),                 // 3
    ("a", -9.0, NORMAL),                        // 4
    ("b", -9.0, NORMAL),                        // 5
    ("ab", -1.0, NORMAL),                       // 6
    ("ba", -2.0, NORMAL),                       // 7
    ("\u{2581}ab", -3.0, NORMAL),               // 8
    ("aba", -4.0, NORMAL),                      // 9
    ("\n\n", -1000.0, USER),                    // 10
    ("<", -9.0, NORMAL),                        // 11
    ("s", -9.0, NORMAL),                        // 12
    (">", -9.0, NORMAL),                        // 13
    ("<s", -5.0, NORMAL),                       // 14
    ("<0xF0>", 0.0, BYTE),                      // 15
    ("<0x9F>", 0.0, BYTE),                      // 16
    ("<0x98>", 0.0, BYTE),                      // 17
    ("<0x8A>", 0.0, BYTE),                      // 18
    ("<0x0A>", 0.0, BYTE),                      // 19
    ("\u{2581}\u{2581}", -7.0, NORMAL),         // 20
    ("\u{2581}\u{2581}\u{2581}", -7.0, NORMAL), // 21
];

fn vocab() -> GgufVocab {
    GgufVocab {
        model: "llama".into(),
        pre: Some("default".into()),
        tokens: TOKENS.iter().map(|t| t.0).collect(),
        scores: Some(TOKENS.iter().map(|t| t.1).collect()),
        token_types: Some(TOKENS.iter().map(|t| t.2).collect()),
        merges: None,
        bos: Some(1),
        eos: Some(2),
        eot: None,
        unk: Some(0),
        pad: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: Some(false),
        chat_template: None,
        name: None,
    }
}

/// Gives an id another text.
fn retold(vocab: &mut GgufVocab, id: usize, text: &str) {
    let texts = vocab.tokens.iter().enumerate();
    vocab.tokens = texts
        .map(|(at, old)| if at == id { text } else { old })
        .collect();
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode(text, EncodeSpecial::Plain, Bos::Never)
        .unwrap()
}

#[test]
fn pairs_join_by_score_and_ties_go_left() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    // `ab` before `ba`, then nothing joins `ab` and `ab`.
    assert_eq!(plain(&t, "abab"), [6, 6]);
    // b + ab: `ba` lost to the better `ab`, and `bab` is no token.
    assert_eq!(plain(&t, "bab"), [5, 6]);
    // ab + a = `aba`.
    assert_eq!(plain(&t, "aba"), [9]);
    // Four spaces tie at every step: left to right gives three and one, not two and two.
    assert_eq!(plain(&t, "    "), [21, 3]);
    assert_eq!(plain(&t, " ab"), [8]);
}

#[test]
fn the_written_file_keeps_the_tie_rule() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let json = t.to_json().unwrap();
    let again = Tokenizer::restore(json.as_bytes(), t.special().clone(), None).unwrap();
    for text in ["    ", "abab", "a \u{1f60a}\n\n\n <s>", "ab<s>ab", ""] {
        assert_eq!(plain(&again, text), plain(&t, text), "{text:?}");
        let ids = plain(&t, text);
        assert_eq!(again.decode(&ids, SpecialText::Keep), text);
    }
    assert_eq!(again.special(), t.special());
    assert_eq!(again.to_json().unwrap(), json);
}

#[test]
fn the_written_file_also_runs_without_our_key() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&t.to_json().unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("sentencepiece");
    let other = Tokenizer::restore(json.to_string().as_bytes(), t.special().clone(), None).unwrap();
    for text in ["abab", "bab aba", "\n\n\nab", "<s>", "\u{1f60a}"] {
        assert_eq!(plain(&other, text), plain(&t, text), "{text:?}");
    }
}

#[test]
fn unknown_characters_fall_back_to_bytes_then_to_unk() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert_eq!(plain(&t, "a\u{1f60a}"), [4, 15, 16, 17, 18]);
    assert_eq!(plain(&t, "\na"), [19, 4]);
    // No byte tokens for these: one unknown token for the run.
    assert_eq!(plain(&t, "xya"), [0, 4]);
    let mut without_unk = vocab();
    without_unk.unk = None;
    let t = Tokenizer::from_gguf(without_unk).unwrap();
    let error = t
        .encode("ax", EncodeSpecial::Plain, Bos::Never)
        .unwrap_err();
    assert!(matches!(error, TokenizerError::Unrepresentable { text } if text == "x"));
}

#[test]
fn user_defined_tokens_match_first_and_markers_only_on_request() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert_eq!(plain(&t, "a\n\n\nb"), [4, 10, 19, 5]);
    // `<s` + `>` must not join into the control token.
    assert_eq!(plain(&t, "<s>ab"), [14, 13, 6]);
    let markers = t
        .encode("<s>ab", EncodeSpecial::Markers, Bos::Never)
        .unwrap();
    assert_eq!(markers, [1, 6]);
}

#[test]
fn there_is_exactly_one_bos() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert!(t.special().add_bos);
    let encode = |text, special, bos| t.encode(text, special, bos).unwrap();
    assert_eq!(encode("ab", EncodeSpecial::Plain, Bos::Model), [1, 6]);
    assert_eq!(encode("<s>ab", EncodeSpecial::Markers, Bos::Model), [1, 6]);
    // Typed by a user it is text, and the real one still comes first.
    assert_eq!(
        encode("<s>ab", EncodeSpecial::Plain, Bos::Model),
        [1, 14, 13, 6]
    );
    assert_eq!(encode("", EncodeSpecial::Plain, Bos::Model), [1]);
    let mut without = vocab();
    without.add_bos = Some(false);
    let t = Tokenizer::from_gguf(without).unwrap();
    let ids = t.encode("ab", EncodeSpecial::Plain, Bos::Model).unwrap();
    assert_eq!(ids, [6]);
}

#[test]
fn the_space_prefix_comes_after_each_marker_and_leaves_on_decode() {
    let mut with_prefix = vocab();
    with_prefix.add_space_prefix = None;
    let t = Tokenizer::from_gguf(with_prefix).unwrap();
    assert_eq!(plain(&t, "ab"), [8]);
    assert_eq!(plain(&t, " ab"), [3, 8]);
    let ids = t
        .encode("ab<s>ab", EncodeSpecial::Markers, Bos::Never)
        .unwrap();
    assert_eq!(ids, [8, 1, 8]);
    assert_eq!(plain(&t, ""), [0_u32; 0]);
    for text in ["ab", " ab", "  ab b"] {
        assert_eq!(t.decode(&plain(&t, text), SpecialText::Skip), text);
    }
    // A continuation keeps its space.
    assert_eq!(t.stream().push(8).as_deref(), Some(" ab"));
}

#[test]
fn a_streamed_character_is_never_split() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let mut stream = t.stream();
    assert_eq!(stream.push(15), None);
    assert_eq!(stream.push(16), None);
    assert_eq!(stream.push(17), None);
    assert_eq!(stream.push(18).as_deref(), Some("\u{1f60a}"));
    assert_eq!(stream.flush(), "");
    // A truncated character: replaced at the end.
    assert_eq!(stream.push(15), None);
    assert_eq!(stream.push(16), None);
    assert_eq!(stream.flush(), "\u{fffd}");
    assert_eq!(stream.flush(), "");
}

#[test]
fn invalid_bytes_do_not_stall_the_stream() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let mut stream = t.stream();
    // A continuation byte without a start can never become a character.
    assert_eq!(stream.push(17).as_deref(), Some("\u{fffd}"));
    // A start followed by another start: the first is lost, the second may still complete.
    assert_eq!(stream.push(15), None);
    assert_eq!(stream.push(15).as_deref(), Some("\u{fffd}"));
    assert_eq!(stream.push(16), None);
    assert_eq!(stream.push(4).as_deref(), Some("\u{fffd}a"));
    // Control tokens have no text, unknown ids the replacement character.
    assert_eq!(stream.push(2), None);
    assert_eq!(stream.push(999).as_deref(), Some("\u{fffd}"));
}

#[test]
fn one_token_as_text_as_piece_and_as_bytes() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert_eq!(t.n_vocab(), TOKENS.len());
    assert_eq!(t.token_piece(8), Some("\u{2581}ab"));
    assert_eq!(t.token_text(8).as_deref(), Some(" ab"));
    assert_eq!(t.token_text(19).as_deref(), Some("\n"));
    assert_eq!(t.token_text(15).as_deref(), Some("\u{fffd}"));
    assert_eq!(t.token_bytes(15), [0xF0]);
    assert_eq!(t.token_text(1).as_deref(), Some("<s>"));
    assert_eq!(t.token_text(22), None);
    assert_eq!(t.token_piece(22), None);
    assert_eq!(t.id_of("aba"), Some(9));
    assert_eq!(t.id_of("nope"), None);
    assert_eq!(t.decode(&[1, 8, 2], SpecialText::Skip), " ab");
    assert_eq!(t.decode(&[1, 8, 2], SpecialText::Keep), "<s> ab</s>");
}

#[test]
fn every_end_marker_stops() {
    let mut v = vocab();
    for (text, token_type) in [("<end_of_turn>", CONTROL), ("<|im_end|>", USER)] {
        v.tokens.push(text);
        v.scores.as_mut().unwrap().push(0.0);
        v.token_types.as_mut().unwrap().push(token_type);
    }
    let t = Tokenizer::from_gguf(v).unwrap();
    assert_eq!(t.special().eos, [2, 22, 23]);
    assert!(t.is_stop(2) && t.is_stop(22) && t.is_stop(23));
    assert!(!t.is_stop(1));
    // Declared as user-defined, but a user must not be able to type it.
    assert!(t.is_control(23));
    assert!(!plain(&t, "<|im_end|>").contains(&23));
}

#[test]
fn a_declared_bos_cannot_be_typed_whatever_its_type_says() {
    for types in [Some(NORMAL), None] {
        let mut v = vocab();
        v.token_types = types.map(|t| {
            let mut all: Vec<i32> = TOKENS.iter().map(|t| t.2).collect();
            all[1] = t;
            all
        });
        let t = Tokenizer::from_gguf(v).unwrap();
        assert!(t.is_control(1));
        // Joining `<s` and `>` would give the id of the marker.
        assert_eq!(plain(&t, "<s>"), [14, 13]);
        // Without types, byte tokens are known by their text.
        assert_eq!(plain(&t, "\n"), [19]);
    }
}

#[test]
fn message_end_is_no_stop_where_turns_have_their_own() {
    let mut v = vocab();
    for text in ["<|end|>", "<|return|>", "<|call|>"] {
        v.tokens.push(text);
        v.scores.as_mut().unwrap().push(0.0);
        v.token_types.as_mut().unwrap().push(CONTROL);
    }
    let t = Tokenizer::from_gguf(v).unwrap();
    assert_eq!(t.special().eos, [2, 23, 24]);
}

#[test]
fn markers_of_one_family_swallow_white_space() {
    let mut v = vocab();
    v.name = Some("Phi-3 mini".into());
    let t = Tokenizer::from_gguf(v).unwrap();
    let encode = |t: &Tokenizer, text| t.encode(text, EncodeSpecial::Markers, Bos::Never).unwrap();
    assert_eq!(encode(&t, "</s>\n ab"), [2, 6]);
    assert_eq!(encode(&t, "<s> ab"), [1, 8]);
    let json = t.to_json().unwrap();
    let again = Tokenizer::restore(json.as_bytes(), t.special().clone(), None).unwrap();
    assert_eq!(encode(&again, "</s>\n ab"), [2, 6]);
}

#[test]
fn lists_that_do_not_fit_are_refused_by_name() {
    let mut short = vocab();
    short.scores.as_mut().unwrap().pop();
    let error = Tokenizer::from_gguf(short).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer.ggml.scores has 21 entries, the vocabulary has 22"
    );
    let mut short = vocab();
    short.token_types.as_mut().unwrap().push(1);
    let error = Tokenizer::from_gguf(short).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer.ggml.token_type has 23 entries, the vocabulary has 22"
    );
    let mut none = vocab();
    none.scores = None;
    let error = Tokenizer::from_gguf(none).unwrap_err();
    assert!(matches!(error, TokenizerError::MissingScores));
    let mut empty = vocab();
    empty.tokens = Default::default();
    let error = Tokenizer::from_gguf(empty).unwrap_err();
    assert!(matches!(error, TokenizerError::EmptyVocabulary));
}

#[test]
fn values_that_make_no_sense_are_refused_by_name() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut v = vocab();
        v.scores.as_mut().unwrap()[9] = bad;
        let error = Tokenizer::from_gguf(v).unwrap_err();
        assert!(
            matches!(error, TokenizerError::NonFiniteScore { id: 9, piece, .. } if piece == "aba")
        );
    }
    let mut v = vocab();
    retold(&mut v, 7, "ab");
    let error = Tokenizer::from_gguf(v).unwrap_err().to_string();
    assert_eq!(error, "token `ab` has two ids: 6 and 7");
    let mut v = vocab();
    v.token_types.as_mut().unwrap()[5] = 7;
    let error = Tokenizer::from_gguf(v).unwrap_err();
    assert!(matches!(
        error,
        TokenizerError::UnknownTokenType {
            id: 5,
            token_type: 7
        }
    ));
    let mut v = vocab();
    v.eos = Some(22);
    let error = Tokenizer::from_gguf(v).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer.ggml.eos_token_id is 22, the vocabulary has 22 tokens"
    );
    let mut v = vocab();
    v.model = "bert".into();
    let error = Tokenizer::from_gguf(v).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer model `bert` is not supported, known: llama, gpt2"
    );
    let mut v = vocab();
    v.bos = None;
    retold(&mut v, 1, "<bos>");
    let error = Tokenizer::from_gguf(v).unwrap_err();
    assert!(matches!(error, TokenizerError::MissingBos));
}
