//! GGUF files by hand.

use super::{Case, hostile, valid};

pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// The parts of a file; everything that a hostile file lies about is a field.
#[derive(Clone)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Raw {
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.n_tensors
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

pub fn key(name: impl AsRef<[u8]>, id: u32, payload: &[u8]) -> Vec<u8> {
    [&string(name)[..], &id.to_le_bytes(), payload].concat()
}

pub fn array(id: u32, count: u64, payload: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &count.to_le_bytes(), payload].concat()
}

/// `ne` is innermost first, as the file has it.
pub fn tensor(name: impl AsRef<[u8]>, ne: &[u64], id: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name);
    out.extend((ne.len() as u32).to_le_bytes());
    out.extend(ne.iter().flat_map(|n| n.to_le_bytes()));
    out.extend(id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

/// Bytes without a period that could hide a shift.
pub fn noise(n_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    (0..n_bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// An F32 matrix `[2, 3]`, a Q8_0 matrix `[5, 96]` and an F16 bank `[2, 3, 5]`.
pub fn base() -> Raw {
    let tokens = [string("a"), string(""), string("\u{e9}\u{4e2d}")].concat();
    let inner = [array(U32, 1, &[7, 0, 0, 0]), array(BOOL, 2, &[1, 0])].concat();
    Raw {
        magic: *b"GGUF",
        version: 3,
        n_tensors: None,
        n_keys: None,
        keys: vec![
            key("general.architecture", STRING, &string("toy")),
            key("toy.context_length", U32, &96u32.to_le_bytes()),
            key("toy.eps", F32, &1e-6f32.to_le_bytes()),
            key("toy.flag", BOOL, &[1]),
            key("toy.tokens", ARRAY, &array(STRING, 3, &tokens)),
            key("toy.nested", ARRAY, &array(ARRAY, 2, &inner)),
        ],
        tensors: vec![
            tensor("blk.0.w", &[3, 2], 0, 0),
            tensor("blk.0.q", &[96, 5], 8, 32),
            tensor("experts", &[5, 3, 2], 1, 544),
        ],
        alignment: 32,
        data: noise(604),
    }
}

fn with(change: impl FnOnce(&mut Raw)) -> Vec<u8> {
    let mut raw = base();
    change(&mut raw);
    raw.build()
}

/// Other tensors than [`base`] has, and as many bytes of data as they need.
fn filled(tensors: Vec<Vec<u8>>, n_bytes: usize) -> Vec<u8> {
    with(|raw| {
        raw.tensors = tensors;
        raw.data = noise(n_bytes);
    })
}

/// Only the tensors differ from [`base`].
fn tensors(tensors: Vec<Vec<u8>>) -> Vec<u8> {
    with(|raw| raw.tensors = tensors)
}

fn one_key(key: Vec<u8>) -> Vec<u8> {
    with(|raw| {
        raw.keys = vec![key];
        raw.tensors.clear();
        raw.data.clear();
    })
}

fn header(n_tensors: u64, n_keys: u64) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(n_tensors.to_le_bytes());
    out.extend(n_keys.to_le_bytes());
    out.resize(out.len() + 40, 0);
    out
}

pub fn cases() -> Vec<Case> {
    let mut cases = valid_cases();
    cases.extend(magic_cases());
    cases.extend(count_cases());
    cases.extend(key_cases());
    cases.extend(alignment_cases());
    cases.extend(shape_cases());
    cases.extend(placement_cases());
    cases
}

fn valid_cases() -> Vec<Case> {
    let aligned = |alignment: usize| {
        with(|raw| {
            let value = (alignment as u32).to_le_bytes();
            let second = 24usize.next_multiple_of(alignment);
            raw.keys.push(key("general.alignment", U32, &value));
            raw.alignment = alignment;
            raw.tensors = vec![
                tensor("w", &[3, 2], 0, 0),
                tensor("v", &[5], 24, second as u64),
            ];
            raw.data = noise(second + 5);
        })
    };
    vec![
        valid("base", base().build()),
        valid("version_2", with(|raw| raw.version = 2)),
        valid(
            "empty",
            with(|raw| {
                raw.keys.clear();
                raw.tensors.clear();
                raw.data.clear();
            }),
        ),
        valid("alignment_64", aligned(64)),
        valid("alignment_8", aligned(8)),
        valid(
            "long_name",
            filled(vec![tensor("n".repeat(300), &[7], 0, 0)], 28),
        ),
        valid(
            "rank_0_and_4",
            filled(
                vec![
                    tensor("scalar", &[], 0, 0),
                    tensor("four", &[3, 1, 2, 5], 24, 32),
                ],
                64,
            ),
        ),
        valid(
            "empty_tensor",
            filled(
                vec![
                    tensor("none", &[0, 4], 0, 32),
                    tensor("some", &[4, 8], 0, 0),
                ],
                128,
            ),
        ),
        valid(
            "order_of_the_header_is_free",
            filled(vec![tensor("b", &[5], 0, 64), tensor("a", &[15], 0, 0)], 84),
        ),
    ]
}

fn magic_cases() -> Vec<Case> {
    let magic = |magic: &[u8; 4]| with(|raw| raw.magic = *magic);
    vec![
        hostile(
            "no_bytes",
            Vec::new(),
            "the file ends inside the magic: 4 bytes needed at offset 0, 0 left",
        ),
        hostile(
            "magic_wrong",
            magic(b"PK\x03\x04"),
            r#"not a GGUF file: it starts with "PK\x03\x04""#,
        ),
        hostile(
            "magic_legacy",
            magic(b"tjgg"),
            "a GGJT file, which GGUF replaced; convert the model again",
        ),
        hostile(
            "magic_legacy_reversed",
            magic(b"GGJT"),
            "a GGJT file, which GGUF replaced; convert the model again",
        ),
        hostile(
            "version_1",
            with(|raw| raw.version = 1),
            "GGUF version 1, supported are 2 and 3",
        ),
        hostile(
            "version_4",
            with(|raw| raw.version = 4),
            "GGUF version 4, supported are 2 and 3",
        ),
        hostile(
            "version_0",
            with(|raw| raw.version = 0),
            "GGUF version 0, supported are 2 and 3",
        ),
        hostile(
            "big_endian",
            with(|raw| raw.version = 3 << 24),
            "a big-endian GGUF file; only little-endian files are supported",
        ),
    ]
}

fn count_cases() -> Vec<Case> {
    let value = |payload: &[u8], id| one_key(key("k", id, payload));
    let huge = 1u64 << 32;
    vec![
        hostile(
            "tensors_2_32",
            header(huge, 0),
            "4294967296 tensors declared, but the 40 bytes left hold at most 1",
        ),
        hostile(
            "tensors_2_64",
            header(u64::MAX, 0),
            "18446744073709551615 tensors declared, but the 40 bytes left hold at most 1",
        ),
        hostile(
            "keys_2_32",
            header(0, huge),
            "4294967296 keys declared, but the 40 bytes left hold at most 3",
        ),
        hostile(
            "keys_2_64",
            header(0, u64::MAX),
            "18446744073709551615 keys declared, but the 40 bytes left hold at most 3",
        ),
        hostile(
            "key_length_2_32",
            with(|raw| raw.keys[0][4] = 1),
            "the length of the name of key 0 is 4294967316, the limit is 65535",
        ),
        hostile(
            "string_length_2_32",
            value(&huge.to_le_bytes(), STRING),
            "the file ends inside the value of key `k`: 4294967296 bytes needed at offset 45, 19 left",
        ),
        hostile(
            "string_length_2_64",
            value(&u64::MAX.to_le_bytes(), STRING),
            "the file ends inside the value of key `k`: 18446744073709551615 bytes needed at offset 45, 19 left",
        ),
        hostile(
            "array_length_2_32",
            value(&array(U32, huge, &[]), ARRAY),
            "4294967296 elements of key `k` declared, but the 15 bytes left hold at most 3",
        ),
        hostile(
            "array_length_2_62",
            value(&array(U32, 1 << 62, &[]), ARRAY),
            "4611686018427387904 elements of key `k` declared, but the 15 bytes left hold at most 3",
        ),
        hostile(
            "strings_2_64",
            value(&array(STRING, u64::MAX, &[]), ARRAY),
            "18446744073709551615 elements of key `k` declared, but the 15 bytes left hold at most 1",
        ),
        hostile(
            "arrays_2_64",
            value(&array(ARRAY, u64::MAX, &[]), ARRAY),
            "18446744073709551615 elements of key `k` declared, but the 15 bytes left hold at most 1",
        ),
        hostile(
            "string_in_array_2_32",
            value(&array(STRING, 1, &huge.to_le_bytes()), ARRAY),
            "the file ends inside string 0 of key `k`: 4294967296 bytes needed at offset 57, 7 left",
        ),
    ]
}

fn key_cases() -> Vec<Case> {
    let nested = (0..100).fold(array(U32, 0, &[]), |inner, _| array(ARRAY, 1, &inner));
    let bad_string = array(STRING, 2, &[string("ok"), string(b"\xff")].concat());
    vec![
        hostile(
            "key_twice",
            with(|raw| raw.keys.push(key("toy.eps", BOOL, &[0]))),
            "key `toy.eps` appears twice",
        ),
        hostile(
            "key_not_utf8",
            one_key(key(b"a\xc3", BOOL, &[0])),
            "the name of key 0 at offset 32 is not UTF-8",
        ),
        hostile(
            "value_not_utf8",
            one_key(key("k", STRING, &string(b"\xe4\xb8"))),
            "the value of key `k` at offset 45 is not UTF-8",
        ),
        hostile(
            "string_not_utf8",
            one_key(key("k", ARRAY, &bad_string)),
            "string 1 of key `k` at offset 67 is not UTF-8",
        ),
        hostile(
            "value_type_13",
            one_key(key("k", 13, &[0; 8])),
            "key `k` has the unknown value type 13",
        ),
        hostile(
            "element_type_99",
            one_key(key("k", ARRAY, &array(99, 1, &[0; 8]))),
            "key `k` has the unknown value type 99",
        ),
        hostile(
            "bool_2",
            one_key(key("k", BOOL, &[2])),
            "key `k` holds the byte 2 as a bool",
        ),
        hostile(
            "bools_255",
            one_key(key("k", ARRAY, &array(BOOL, 3, &[0, 1, 255]))),
            "key `k` holds the byte 255 as a bool",
        ),
        hostile(
            "nested_100",
            one_key(key("k", ARRAY, &nested)),
            "the nesting of key `k` is 5, the limit is 4",
        ),
    ]
}

fn alignment_cases() -> Vec<Case> {
    let alignment = |id, payload: &[u8]| {
        let key = key("general.alignment", id, payload);
        with(|raw| raw.keys.push(key))
    };
    vec![
        hostile(
            "alignment_0",
            alignment(U32, &[0; 4]),
            "alignment 0 is not a power of two",
        ),
        hostile(
            "alignment_3",
            alignment(U32, &[3, 0, 0, 0]),
            "alignment 3 is not a power of two",
        ),
        hostile(
            "alignment_string",
            alignment(STRING, &string("32")),
            "key `general.alignment` is a string, expected u32",
        ),
        hostile(
            "alignment_array",
            alignment(ARRAY, &array(U32, 1, &[32, 0, 0, 0])),
            "key `general.alignment` is an array of u32, expected u32",
        ),
        hostile(
            "alignment_2_31",
            alignment(U32, &(1u32 << 31).to_le_bytes()),
            "tensor `blk.0.w` lies outside the file: offset 0 in the data at 2147483648, 24 bytes, file of 1084",
        ),
        hostile(
            "offset_unaligned",
            tensors(vec![tensor("w", &[3], 0, 4)]),
            "tensor `w` begins at offset 4, which is not a multiple of the alignment 32",
        ),
    ]
}

fn shape_cases() -> Vec<Case> {
    let rank = |rank: u32| {
        let mut record = string("w");
        record.extend(rank.to_le_bytes());
        record.resize(record.len() + 80, 1);
        tensors(vec![record])
    };
    let shape = |ne: &[u64], id| tensors(vec![tensor("w", ne, id, 0)]);
    vec![
        hostile(
            "rank_5",
            rank(5),
            "tensor `w` has 5 dimensions, at most 4 are supported",
        ),
        hostile(
            "rank_2_32",
            rank(u32::MAX),
            "tensor `w` has 4294967295 dimensions, at most 4 are supported",
        ),
        hostile(
            "shape_wraps",
            shape(&[1 << 32, 1 << 32], 0),
            "tensor `w` of type F32 and shape [4294967296, 4294967296]: its size overflows",
        ),
        hostile(
            "shape_wraps_to_small",
            shape(&[8, (1 << 61) + 1], 24),
            "tensor `w` of type I8 and shape [2305843009213693953, 8]: its size overflows",
        ),
        hostile(
            "size_wraps",
            shape(&[(1 << 62) + 1], 0),
            "tensor `w` of type F32 and shape [4611686018427387905]: its size overflows",
        ),
        hostile(
            "half_a_block",
            shape(&[48, 2], 8),
            "tensor `w` of type Q8_0 and shape [2, 48]: rows are not whole blocks of 32 values",
        ),
        hostile(
            "type_99",
            shape(&[3], 99),
            "tensor `w` has the unknown ggml type 99",
        ),
        hostile(
            "type_removed",
            shape(&[32], 4),
            "tensor `w` has the unknown ggml type 4",
        ),
    ]
}

fn placement_cases() -> Vec<Case> {
    vec![
        hostile(
            "offset_wraps",
            tensors(vec![
                tensor("ok", &[3], 0, 0),
                tensor("w", &[3], 0, u64::MAX - 31),
            ]),
            "tensor `w` lies outside the file: offset 18446744073709551584 in the data at 352, 12 bytes, file of 956",
        ),
        hostile(
            "offset_unaligned_2_64",
            tensors(vec![tensor("w", &[8], 0, u64::MAX - 15)]),
            "tensor `w` begins at offset 18446744073709551600, which is not a multiple of the alignment 32",
        ),
        hostile(
            "first_outside",
            tensors(vec![
                tensor("in", &[3], 0, 0),
                tensor("first", &[152], 0, 32),
                tensor("second", &[9], 0, 6400),
            ]),
            "tensor `first` lies outside the file: offset 32 in the data at 384, 608 bytes, file of 988",
        ),
        hostile(
            "overlap",
            tensors(vec![tensor("b", &[9], 0, 32), tensor("a", &[10], 0, 0)]),
            "tensors `a` and `b` overlap: the first ends at offset 40, the second begins at 32",
        ),
        hostile(
            "overlap_by_one",
            tensors(vec![tensor("a", &[33], 24, 0), tensor("b", &[5], 24, 32)]),
            "tensors `a` and `b` overlap: the first ends at offset 33, the second begins at 32",
        ),
        hostile(
            "end_wraps",
            tensors(vec![tensor("w", &[u64::MAX - 15], 24, 32)]),
            "tensor `w` lies outside the file: offset 32 in the data at 320, 18446744073709551600 bytes, file of 924",
        ),
        hostile(
            "gap_before_the_first",
            filled(vec![tensor("late", &[3], 0, 320)], 332),
            "320 bytes of no tensor after the header, where tensor `late` is expected: a type or a shape in the header is not that of the data",
        ),
        hostile(
            "called_smaller_than_it_is",
            with(|raw| raw.tensors[1] = tensor("blk.0.q", &[96, 5], 2, 32)),
            "242 bytes of no tensor after tensor `blk.0.q`, where tensor `experts` is expected: a type or a shape in the header is not that of the data",
        ),
        hostile(
            "last_called_smaller",
            with(|raw| raw.tensors[2] = tensor("experts", &[5, 1, 2], 1, 544)),
            "40 bytes of no tensor after tensor `experts`, where the end of the file is expected: a type or a shape in the header is not that of the data",
        ),
        hostile(
            "same_place",
            tensors(vec![tensor("a", &[9], 0, 64), tensor("b", &[9], 0, 64)]),
            "tensors `a` and `b` overlap: the first ends at offset 100, the second begins at 64",
        ),
        hostile(
            "tensor_twice",
            tensors(vec![tensor("a", &[9], 0, 64), tensor("a", &[9], 0, 128)]),
            "tensor `a` appears twice",
        ),
        hostile(
            "tensor_name_not_utf8",
            tensors(vec![tensor(b"\x80", &[9], 0, 64)]),
            "the name of tensor 0 at offset 281 is not UTF-8",
        ),
        hostile(
            "tensor_name_long",
            tensors(vec![[&(65_536u64).to_le_bytes()[..], &[b'a'; 90]].concat()]),
            "the length of the name of tensor 0 is 65536, the limit is 65535",
        ),
    ]
}
