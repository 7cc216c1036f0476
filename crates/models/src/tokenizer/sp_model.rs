//! `tokenizer.model`: the SentencePiece file that holds the scores of a vocabulary.
//!
//! Useful for: the exact scores and types of a vocabulary whose tokenizer.json has only merges.
//! Not useful for: running it, or the parts about training.
//! The format is a protobuf message (`sentencepiece_model.proto`); we read and write the fields
//! named below and skip the others.

use super::error::TokenizerError;
use super::json::MAX_TOKENS;

const PIECES: u32 = 1;
const TRAINER: u32 = 2;
const NORMALIZER: u32 = 3;

const PIECE_TEXT: u32 = 1;
const PIECE_SCORE: u32 = 2;
const PIECE_TYPE: u32 = 3;

const TRAINER_MODEL_TYPE: u32 = 3;
const TRAINER_VOCAB_SIZE: u32 = 4;
const TRAINER_BYTE_FALLBACK: u32 = 35;
const TRAINER_UNK_ID: u32 = 40;
const TRAINER_BOS_ID: u32 = 41;
const TRAINER_EOS_ID: u32 = 42;
const TRAINER_PAD_ID: u32 = 43;

const NORMALIZER_NAME: u32 = 1;
const NORMALIZER_DUMMY_PREFIX: u32 = 3;
const NORMALIZER_EXTRA_SPACES: u32 = 4;

/// The model type of joined pairs; 1 is the unigram model.
const BPE: u64 = 2;

/// What a SentencePiece file says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SpModel {
    pub(super) pieces: Vec<SpPiece>,
    pub(super) byte_fallback: bool,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) unk: Option<u32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) pad: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct SpPiece {
    pub(super) text: String,
    pub(super) score: f32,
    /// The numbers of GGUF token types are those of SentencePiece.
    pub(super) kind: i32,
}

fn wrong(what: impl Into<String>) -> TokenizerError {
    TokenizerError::SentencePieceModel { what: what.into() }
}

/// One field of a message.
enum Field<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
}

/// Walks the fields of a message.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self
                .rest
                .split_first()
                .ok_or_else(|| wrong("it ends inside a number"))?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong("a number is longer than 64 bits"))
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], TokenizerError> {
        let split = usize::try_from(n)
            .ok()
            .and_then(|n| self.rest.split_at_checked(n));
        let (taken, rest) =
            split.ok_or_else(|| wrong(format!("a field of {n} bytes is cut off")))?;
        self.rest = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u32, Field<'a>)>, TokenizerError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number =
            u32::try_from(tag >> 3).map_err(|_| wrong("a field number is out of range"))?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Bytes(self.take(8)?),
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Field::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return Err(wrong(format!("wire type {other} is not known"))),
        };
        Ok(Some((number, field)))
    }
}

/// Reads the bytes of a `tokenizer.model`.
pub(super) fn read(bytes: &[u8]) -> Result<SpModel, TokenizerError> {
    let mut model = SpModel {
        pieces: Vec::new(),
        byte_fallback: false,
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        unk: Some(0),
        bos: Some(1),
        eos: Some(2),
        pad: None,
    };
    // Unless the file says so, a model is of the unigram kind.
    let mut model_type = 1;
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (PIECES, Field::Bytes(piece)) => model.pieces.push(read_piece(piece)?),
            (TRAINER, Field::Bytes(trainer)) => read_trainer(trainer, &mut model, &mut model_type)?,
            (NORMALIZER, Field::Bytes(normalizer)) => read_normalizer(normalizer, &mut model)?,
            (_, Field::Number(_) | Field::Float(_) | Field::Bytes(_)) => {}
        }
        if model.pieces.len() > MAX_TOKENS {
            return Err(wrong(format!("it has more than {MAX_TOKENS} pieces")));
        }
    }
    if model_type != BPE {
        return Err(wrong(format!(
            "model type {model_type} is not supported, known: {BPE} (BPE)"
        )));
    }
    if model.pieces.is_empty() {
        return Err(TokenizerError::EmptyVocabulary);
    }
    Ok(model)
}

fn read_piece(bytes: &[u8]) -> Result<SpPiece, TokenizerError> {
    let mut piece = SpPiece {
        text: String::new(),
        score: 0.0,
        kind: 1,
    };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (PIECE_TEXT, Field::Bytes(text)) => {
                let text = std::str::from_utf8(text)
                    .map_err(|_| wrong("the text of a piece is not UTF-8"))?;
                text.clone_into(&mut piece.text);
            }
            (PIECE_SCORE, Field::Float(score)) => piece.score = score,
            (PIECE_TYPE, Field::Number(kind)) => {
                piece.kind = i32::try_from(kind)
                    .map_err(|_| wrong(format!("a piece has type {kind}, known are 1 to 6")))?;
            }
            (_, Field::Number(_) | Field::Float(_) | Field::Bytes(_)) => {}
        }
    }
    Ok(piece)
}

fn read_trainer(
    bytes: &[u8],
    model: &mut SpModel,
    model_type: &mut u64,
) -> Result<(), TokenizerError> {
    // Negative ids, written as huge numbers, mean that there is none.
    let mut fields = Fields { rest: bytes };
    while let Some((number, field)) = fields.next()? {
        let Field::Number(value) = field else {
            continue;
        };
        match number {
            TRAINER_MODEL_TYPE => *model_type = value,
            TRAINER_BYTE_FALLBACK => model.byte_fallback = value != 0,
            TRAINER_UNK_ID => model.unk = u32::try_from(value).ok(),
            TRAINER_BOS_ID => model.bos = u32::try_from(value).ok(),
            TRAINER_EOS_ID => model.eos = u32::try_from(value).ok(),
            TRAINER_PAD_ID => model.pad = u32::try_from(value).ok(),
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(bytes: &[u8], model: &mut SpModel) -> Result<(), TokenizerError> {
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (NORMALIZER_DUMMY_PREFIX, Field::Number(on)) => model.add_dummy_prefix = on != 0,
            (NORMALIZER_EXTRA_SPACES, Field::Number(on)) => {
                model.remove_extra_whitespaces = on != 0;
            }
            (_, Field::Number(_) | Field::Float(_) | Field::Bytes(_)) => {}
        }
    }
    Ok(())
}

/// The bytes of a `tokenizer.model`.
pub(super) fn write(model: &SpModel) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in &model.pieces {
        let mut message = Vec::new();
        put_bytes(&mut message, PIECE_TEXT, piece.text.as_bytes());
        put_tag(&mut message, PIECE_SCORE, 5);
        message.extend_from_slice(&piece.score.to_le_bytes());
        put_number(&mut message, PIECE_TYPE, i64::from(piece.kind));
        put_bytes(&mut out, PIECES, &message);
    }
    let mut trainer = Vec::new();
    let id = |id: Option<u32>| id.map_or(-1, i64::from);
    for (number, value) in [
        (TRAINER_MODEL_TYPE, BPE as i64),
        (TRAINER_VOCAB_SIZE, model.pieces.len() as i64),
        (TRAINER_BYTE_FALLBACK, i64::from(model.byte_fallback)),
        (TRAINER_UNK_ID, id(model.unk)),
        (TRAINER_BOS_ID, id(model.bos)),
        (TRAINER_EOS_ID, id(model.eos)),
        (TRAINER_PAD_ID, id(model.pad)),
    ] {
        put_number(&mut trainer, number, value);
    }
    put_bytes(&mut out, TRAINER, &trainer);
    let mut normalizer = Vec::new();
    put_bytes(&mut normalizer, NORMALIZER_NAME, b"identity");
    put_number(
        &mut normalizer,
        NORMALIZER_DUMMY_PREFIX,
        i64::from(model.add_dummy_prefix),
    );
    put_number(
        &mut normalizer,
        NORMALIZER_EXTRA_SPACES,
        i64::from(model.remove_extra_whitespaces),
    );
    put_bytes(&mut out, NORMALIZER, &normalizer);
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_tag(out: &mut Vec<u8>, number: u32, wire_type: u64) {
    put_varint(out, u64::from(number) << 3 | wire_type);
}

fn put_number(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, 0);
    put_varint(out, value.cast_unsigned());
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> SpModel {
        let piece = |text: &str, score, kind| SpPiece {
            text: text.to_owned(),
            score,
            kind,
        };
        SpModel {
            pieces: vec![
                piece("<unk>", 0.0, 2),
                piece("\u{2581}a", -1.5, 1),
                piece("<0x0A>", 0.0, 6),
            ],
            byte_fallback: true,
            add_dummy_prefix: false,
            remove_extra_whitespaces: false,
            unk: Some(0),
            bos: None,
            eos: Some(300),
            pad: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&write(&model())).unwrap(), model());
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = write(&model());
        // Field 1, 14 bytes: text of 5, score as four bytes, type 2.
        assert_eq!(
            bytes[..16],
            [
                0x0a, 14, 0x0a, 5, b'<', b'u', b'n', b'k', b'>', 0x15, 0, 0, 0, 0, 0x18, 2
            ]
        );
        // An absent id is -1: ten bytes.
        let absent: [u8; 12] = [
            0xc8, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ];
        assert!(bytes.windows(12).any(|w| w == absent));
    }

    #[test]
    fn damaged_files_are_refused() {
        let good = write(&model());
        let mut failed = 0;
        for len in 0..good.len() {
            failed += usize::from(read(&good[..len]).is_err());
        }
        // Cut anywhere before the kind of model is known it cannot be read.
        assert!(failed > good.len() / 2, "{failed} of {}", good.len());
        for bytes in [&[0x0b_u8][..], &[0xff; 11], &[0x0a, 0xff, 0xff, 0x03]] {
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, TokenizerError::SentencePieceModel { .. }));
        }
        let unigram = [0x12, 2, 0x18, 1];
        let error = read(&unigram).unwrap_err().to_string();
        assert_eq!(
            error,
            "tokenizer.model: model type 1 is not supported, known: 2 (BPE)"
        );
    }
}
