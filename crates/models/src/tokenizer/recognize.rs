//! Finds the name that a GGUF gives to the splitting rule of a tokenizer.json.
//!
//! The one idea: spellings of one rule differ between files, so rules are compared by what they do to
//! texts that every two rules of the table cut differently (a test holds them to that).

use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
};

use super::error::TokenizerError;
use super::pre::PreTokenizer;

/// Texts on which the splitting rules in use differ, all in composed form.
pub(super) const TEXTS: &[&str] = &[
    "re-use",
    "\n\n\n",
    " 123",
    "1 12 123 1234 12345 123456 1234567",
    "a1b22c333d4444 x1\u{b2}\u{0663}\u{0664}\u{0665}\u{0666} \u{2167}\u{bd}",
    "I'm you're HE'LL we'Ve it's 'tis rock'n'roll don't D'Arc x's9 'S\n'd",
    "Caf\u{e9} d\u{e9}j\u{e0} vu \u{2014} \u{1f60a}",
    "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1eb}\u{1f1f7}\u{fe0f}!",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{ff01}abc\u{4e2d}\u{6587}123",
    "\u{3053}\u{3093}\u{306b}\u{3061}\u{306f}\u{30ab}\u{30bf}\u{30ab}\u{30ca}\u{4e16}\u{754c}x",
    "\u{c548}\u{b155}\u{d558}\u{c138}\u{c694} \u{c138}\u{acc4}\u{3002}",
    "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}, \u{43c}\u{438}\u{440}! \u{39a}\u{3b1}\u{3bb}\u{3b7}",
    "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} \u{926}\u{941}\u{928}\u{93f}\u{92f}\u{93e} \u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35}",
    "\u{645}\u{631}\u{62d}\u{628}\u{64b}\u{627} \u{5e9}\u{5c1}\u{5dc}\u{5d5}\u{5dd} \u{1e1}\u{304}x",
    "camelCaseHTTPServer fooBAR's XMLHttp iOS McDonald's aB\u{1c5}\u{2b0}c",
    "def f(x):\n    if x!=0:\n\t\treturn x**2  # note\n\n\nclass A{};\r\n//--/path/to/x\n",
    "<a href=\"x\">$5.00+7=^|~`@#&*</a>\n/\n\n x",
    "  two   three    four     five\t\ttabs \t mix \n  \n \n\u{a0}\u{3000}\u{2003}end   ",
    "x\n y\n  z \n\n w\r\n\r\n v\n\n\n  ",
    "...!!! ??? ,,, --- ___ (a) [b] {c} \"d\" 'e' #f @g/h\\i \u{201c}q\u{201d}\u{2026}\u{20ac}\u{b1}",
    "_a .b -c *d /e !f\u{e9} ?\u{4e2d} $x1 ^y~z a_b a.b",
    "\u{ff11}\u{ff12}\u{ff13}\u{ff14} \u{ff21}\u{ff22} \u{ff5e}\u{3001}\u{2019}s 3.14 1,000,000",
    "",
    " ",
    "  ",
    "\t",
    "\u{1}\u{7f}\u{200b}\u{feff}\u{fb01}",
];

/// Byte ranges of the words of `text`.
fn cuts(words: &PreTokenizerWrapper, text: &str) -> Result<Vec<(usize, usize)>, TokenizerError> {
    let mut split = PreTokenizedString::from(text);
    words
        .pre_tokenize(&mut split)
        .map_err(TokenizerError::backend("splitting a probe text"))?;
    let pieces = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(pieces.into_iter().map(|(_, span, _)| span).collect())
}

/// One character of each class that a rule may treat apart.
const CLASSES: [char; 13] = [
    ' ', '\n', '\t', 'a', 'B', '1', '!', '\'', '/', '\u{93f}', '\u{4e2d}', '\u{3042}', '\u{3002}',
];

/// The texts above, and all words of three classes.
fn texts() -> impl Iterator<Item = String> {
    let one = || CLASSES.iter();
    let triples = one().flat_map(move |a| {
        one().flat_map(move |b| one().map(move |c| String::from_iter([a, b, c])))
    });
    TEXTS.iter().map(|text| (*text).to_owned()).chain(triples)
}

/// Whether two rules cut all texts alike.
fn alike(a: &PreTokenizerWrapper, b: &PreTokenizerWrapper) -> Result<bool, TokenizerError> {
    for text in texts() {
        if cuts(a, &text)? != cuts(b, &text)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The name of the rule that cuts every probe text as `words` does, preferring one that treats
/// whole words as `ignore_merges` says.
pub(super) fn name_of(
    words: Option<&PreTokenizerWrapper>,
    ignore_merges: bool,
) -> Result<&'static str, TokenizerError> {
    let unrecognized = || TokenizerError::UnrecognizedPre {
        rule: serde_json::to_string(&words).unwrap_or_default(),
    };
    let words = words.ok_or_else(unrecognized)?;
    let mut second_choice = None;
    for rule in PreTokenizer::all() {
        let candidate: PreTokenizerWrapper = serde_json::from_value(rule.to_json())?;
        if !alike(words, &candidate)? {
            continue;
        }
        if rule.ignore_merges == ignore_merges {
            return Ok(rule.first_name());
        }
        second_choice.get_or_insert(rule.first_name());
    }
    second_choice.ok_or_else(unrecognized)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapper(json: serde_json::Value) -> PreTokenizerWrapper {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_texts_tell_all_rules_apart() {
        let all: Vec<_> = PreTokenizer::all()
            .iter()
            .map(|rule| (rule, wrapper(rule.to_json())))
            .collect();
        for (i, (a, words_a)) in all.iter().enumerate() {
            for (b, words_b) in &all[..i] {
                assert_eq!(
                    alike(words_a, words_b).unwrap(),
                    a.patterns == b.patterns,
                    "{} {}",
                    a.first_name(),
                    b.first_name()
                );
            }
        }
    }

    #[test]
    fn other_spellings_of_a_rule_have_its_name() {
        let byte_level = |use_regex: bool| {
            serde_json::json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex,
            })
        };
        let sequence = |steps: &[serde_json::Value]| {
            wrapper(serde_json::json!({ "type": "Sequence", "pretokenizers": steps }))
        };
        let digits = serde_json::json!({ "type": "Digits", "individual_digits": true });
        let cl100k = serde_json::json!({
            "type": "Split",
            "pattern": { "Regex": "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" },
            "behavior": "Removed",
            "invert": true,
        });
        let gpt2 = wrapper(byte_level(true));
        assert_eq!(name_of(Some(&gpt2), false).unwrap(), "gpt-2");
        let starcoder = sequence(&[digits.clone(), byte_level(true)]);
        assert_eq!(name_of(Some(&starcoder), false).unwrap(), "starcoder");
        let other = sequence(&[digits, cl100k.clone(), byte_level(false)]);
        let error = name_of(Some(&other), false).unwrap_err();
        assert!(matches!(error, TokenizerError::UnrecognizedPre { .. }));
        let phi4 = sequence(&[cl100k, byte_level(false)]);
        let error = name_of(Some(&phi4), false);
        assert_eq!(error.unwrap(), "dbrx");
    }

    #[test]
    fn whole_words_decide_between_two_names_of_one_rule() {
        let llama = wrapper(PreTokenizer::by_name("llama-bpe").unwrap().to_json());
        assert_eq!(name_of(Some(&llama), true).unwrap(), "llama-bpe");
        assert_eq!(name_of(Some(&llama), false).unwrap(), "dbrx");
        assert!(matches!(
            name_of(None, false).unwrap_err(),
            TokenizerError::UnrecognizedPre { .. }
        ));
    }
}
