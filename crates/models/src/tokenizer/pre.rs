//! How byte-level vocabularies cut a text into words before merging, by the name a GGUF gives it.
//!
//! The patterns are part of each model. A name that is not in the table is an error: another
//! model's pattern gives plausible ids of lower quality, which nobody would notice.

use super::error::TokenizerError;

/// The pattern of GPT-2.
const GPT2: &str = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)";
/// Every digit alone.
const ONE_DIGIT: &str = "\\p{N}";
/// Digits in groups of three from the left.
const THREE_DIGITS: &str = "\\p{N}{1,3}";
/// Every line break alone.
const LINE_BREAK: &str = "[\\r\\n]";
/// Words with one leading symbol, digits in threes.
const LLAMA3: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// As `LLAMA3`, digits alone.
const QWEN2: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// As `QWEN2`, combining marks belong to words.
const QWEN35: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// As `QWEN2`, symbols do not take line breaks along.
const SEED: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Words are also cut where lower case turns to upper case.
const TEKKEN: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// As `TEKKEN`, English contractions belong to words.
const GPT4O: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// As `GPT4O`, Chinese characters apart.
const KIMI: &str = "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Letters with marks, symbols with a following ASCII word.
const DEEPSEEK3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Chinese and Japanese runs.
const CJK3: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// Chinese, Japanese and Korean runs.
const CJK: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
/// Letters of the bicameral scripts, with one space in front.
const CASED_LETTERS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\
    \u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\
    \u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\
    \u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\
    \u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\
    \u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\
    \u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\
    \u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\
    \u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\
    \u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\
    \u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\
    \u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\
    \u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\
    \u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\
    \u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";
/// ASCII and full-width punctuation, with one space in front.
const WIDE_PUNCTUATION: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";

/// Patterns are applied one after the other, each to the pieces that the one before left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    pub(super) patterns: &'static [&'static str],
    /// A word that is a token as a whole is not merged.
    pub(super) ignore_merges: bool,
    /// Whether the vocabularies of this name start with a BOS when the file does not say.
    pub(super) add_bos: bool,
}

const fn rule(names: &'static [&'static str], patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        names,
        patterns,
        ignore_merges: false,
        add_bos: false,
    }
}

const fn whole_words(mut rule: PreTokenizer) -> PreTokenizer {
    rule.ignore_merges = true;
    rule.add_bos = true;
    rule
}

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    rule(
        &["default"],
        &[
            "[\\p{P}\\$\\+<=>\\^~\\|]+",
            GPT2,
            "\\p{N}+",
            "[0-9][0-9][0-9]",
        ],
    ),
    rule(
        &[
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "exaone4",
            "mellum",
            "granite-docling",
        ],
        &[GPT2],
    ),
    whole_words(rule(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
        ],
        &[LLAMA3],
    )),
    rule(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    rule(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    rule(&["qwen35"], &[QWEN35]),
    rule(&["seed-coder"], &[SEED]),
    rule(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        &[ONE_DIGIT, GPT2],
    ),
    rule(
        &["falcon"],
        &["[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"],
    ),
    rule(
        &["deepseek-coder"],
        &[LINE_BREAK, "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, ONE_DIGIT],
    ),
    rule(
        &["deepseek-llm"],
        &[
            LINE_BREAK,
            CASED_LETTERS,
            WIDE_PUNCTUATION,
            "\\s+$",
            CJK,
            "\\p{N}+",
        ],
    ),
    rule(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[THREE_DIGITS, CJK3, DEEPSEEK3],
    ),
    whole_words(rule(&["tekken"], &[TEKKEN])),
    rule(&["gpt-4o", "llama4", "minimax-m2", "kanana2"], &[GPT4O]),
    rule(&["kimi-k2"], &[KIMI]),
];

/// The pre-tokenizer names that a byte-level GGUF may carry.
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    PRE_TOKENIZERS.iter().flat_map(|p| p.names).copied()
}

impl PreTokenizer {
    /// Every rule once.
    pub(super) fn all() -> &'static [Self] {
        PRE_TOKENIZERS
    }

    /// The name by which files that we write call the rule.
    pub(super) fn first_name(&self) -> &'static str {
        self.names[0]
    }

    pub(super) fn by_name(name: &str) -> Result<&'static Self, TokenizerError> {
        PRE_TOKENIZERS
            .iter()
            .find(|p| p.names.contains(&name))
            .ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                pre: name.to_owned(),
                known: known_pre_tokenizers().collect::<Vec<_>>().join(", "),
            })
    }

    /// The same rule in the form that tokenizer.json has.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let mut steps: Vec<_> = self
            .patterns
            .iter()
            .map(|pattern| {
                serde_json::json!({
                    "type": "Split",
                    "pattern": { "Regex": pattern },
                    "behavior": "Isolated",
                    "invert": false,
                })
            })
            .collect();
        steps.push(serde_json::json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": false,
        }));
        serde_json::json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    };

    /// The words of `text`, with the byte alphabet's space written back.
    fn words(name: &str, text: &str) -> Vec<String> {
        let json = PreTokenizer::by_name(name).unwrap().to_json();
        let pre: PreTokenizerWrapper = serde_json::from_value(json).unwrap();
        let mut split = PreTokenizedString::from(text);
        pre.pre_tokenize(&mut split).unwrap();
        split
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .iter()
            .map(|(_, (start, end), _)| text[*start..*end].to_owned())
            .collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "a  b\n\n 12345 don't re-use \u{e9}\u{4e00}\u{3042}! \t ";
        for name in known_pre_tokenizers() {
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = known_pre_tokenizers().collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn digits_contractions_and_spaces_are_cut_as_each_model_does() {
        let text = "I'M 12345  x";
        assert_eq!(words("gpt-2", text), ["I", "'", "M", " 12345", " ", " x"]);
        assert_eq!(
            words("llama-bpe", text),
            ["I", "'M", " ", "123", "45", " ", " x"]
        );
        assert_eq!(
            words("qwen2", text),
            ["I", "'M", " ", "1", "2", "3", "4", "5", " ", " x"]
        );
        assert_eq!(
            words("starcoder", text),
            ["I", "'", "M", " ", "1", "2", "3", "4", "5", " ", " x"]
        );
    }

    #[test]
    fn case_changes_cut_words_where_the_model_says_so() {
        assert_eq!(words("gpt-4o", "fooBAR's"), ["foo", "BAR's"]);
        assert_eq!(words("tekken", "fooBAR's"), ["foo", "BAR", "'s"]);
        assert_eq!(words("llama-bpe", "fooBAR's"), ["fooBAR", "'s"]);
    }

    #[test]
    fn scripts_are_cut_as_deepseek_does() {
        let text = "\u{4e2d}\u{6587}abc";
        assert_eq!(words("deepseek-v3", text), ["\u{4e2d}\u{6587}", "abc"]);
        assert_eq!(words("deepseek-llm", text), ["\u{4e2d}\u{6587}", "abc"]);
        assert_eq!(words("kimi-k2", text), ["\u{4e2d}\u{6587}", "abc"]);
        // One run of letters for a pattern that only knows \\p{L}.
        assert_eq!(words("qwen2", text), [text]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = PreTokenizer::by_name("qwen9").unwrap_err().to_string();
        assert!(error.contains("`qwen9`"), "{error}");
        assert!(error.contains("qwen2"), "{error}");
    }
}
