//! safetensors files by hand.

use super::{Case, hostile, valid};
use crate::support::gguf::noise;

pub fn file(header: impl AsRef<[u8]>, n_data: usize) -> Vec<u8> {
    let header = header.as_ref();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(noise(n_data));
    out
}

fn with_length(length: u64, header: &str) -> Vec<u8> {
    [&length.to_le_bytes()[..], header.as_bytes()].concat()
}

pub fn base() -> Vec<u8> {
    file(
        concat!(
            r#"{"__metadata__":{"format":"pt"},"#,
            r#""w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
            r#""b":{"dtype":"BF16","shape":[7],"data_offsets":[24,38]},"#,
            r#""e":{"dtype":"U8","shape":[2,3,5],"data_offsets":[38,68]}}"#
        ),
        68,
    )
}

fn one(entry: &str, n_data: usize) -> Vec<u8> {
    file(format!(r#"{{"w":{entry}}}"#), n_data)
}

fn spans(a: [u64; 2], b: [u64; 2], n_data: usize) -> Vec<u8> {
    let (na, nb) = (a[1] - a[0], b[1] - b[0]);
    let header = format!(
        r#"{{"a":{{"dtype":"I8","shape":[{na}],"data_offsets":{a:?}}},"b":{{"dtype":"I8","shape":[{nb}],"data_offsets":{b:?}}}}}"#
    );
    file(header, n_data)
}

pub fn cases() -> Vec<Case> {
    let mut cases = valid_cases();
    cases.extend(header_cases());
    cases.extend(json_cases());
    cases.extend(span_cases());
    cases
}

fn valid_cases() -> Vec<Case> {
    vec![
        valid("base", base()),
        valid("empty", file("{}", 0)),
        valid(
            "metadata_null",
            file(
                r#"{"__metadata__":null,"w":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}"#,
                3,
            ),
        ),
        valid("metadata_empty", file(r#"{"__metadata__":{}}"#, 0)),
        valid(
            "zero_elements",
            file(
                r#"{"z":{"dtype":"F32","shape":[0,4],"data_offsets":[3,3]},"w":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},"y":{"dtype":"F16","shape":[5,0],"data_offsets":[0,0]}}"#,
                3,
            ),
        ),
        valid(
            "scalar",
            one(r#"{"dtype":"F64","shape":[],"data_offsets":[0,8]}"#, 8),
        ),
        valid(
            "odd_alignment",
            file(
                r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"BF16","shape":[5],"data_offsets":[3,13]}} "#,
                13,
            ),
        ),
        valid("padded_header", file("{}      ", 0)),
        valid(
            "float_8",
            file(
                r#"{"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[3,5]},"s":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[5,6]}}"#,
                6,
            ),
        ),
    ]
}

fn header_cases() -> Vec<Case> {
    vec![
        hostile(
            "no_bytes",
            Vec::new(),
            "the file ends inside the header length: 8 bytes needed at offset 0, 0 left",
        ),
        hostile(
            "seven_bytes",
            vec![1, 0, 0, 0, 0, 0, 0],
            "the file ends inside the header length: 8 bytes needed at offset 0, 7 left",
        ),
        hostile(
            "length_2_64",
            with_length(u64::MAX, "{}"),
            "the header length is 18446744073709551615, the limit is 100000000",
        ),
        hostile(
            "length_above_limit",
            with_length(100_000_001, "{}"),
            "the header length is 100000001, the limit is 100000000",
        ),
        hostile(
            "length_at_limit",
            with_length(100_000_000, "{}"),
            "the file ends inside the header: 100000000 bytes needed at offset 8, 2 left",
        ),
        hostile(
            "length_0",
            file("", 20),
            "the file ends inside the header: 2 bytes needed at offset 8, 20 left",
        ),
        hostile(
            "not_utf8",
            file(b"{\"a\xff\":1}", 0),
            "the header at offset 11 is not UTF-8",
        ),
        hostile(
            "start_array",
            file("[]", 0),
            r#"not a safetensors file: the header begins with "[", not {"#,
        ),
        hostile(
            "start_space",
            file(" {}", 0),
            r#"not a safetensors file: the header begins with " ", not {"#,
        ),
        hostile(
            "start_zip",
            file(b"PK\x03\x04", 0),
            r#"not a safetensors file: the header begins with "P", not {"#,
        ),
    ]
}

fn json_cases() -> Vec<Case> {
    let entry = r#"{"dtype":"I8","shape":[3],"data_offsets":[0,3]}"#;
    let twice = format!(r#"{{"w":{entry},"w":{entry}}}"#);
    let deep = format!("{{\"w\":{{\"dtype\":\"I8\",\"shape\":{}", "[".repeat(900));
    vec![
        hostile(
            "json_cut",
            file("{\"w\":", 0),
            "the header is not the JSON of a safetensors file: tensor `w`: EOF while parsing a value at line 1 column 5",
        ),
        hostile(
            "json_rest",
            file("{}x", 0),
            "the header is not the JSON of a safetensors file: trailing characters at line 1 column 3",
        ),
        hostile(
            "json_deep",
            file(deep, 0),
            "the header is not the JSON of a safetensors file: tensor `w`: invalid type: sequence, expected u64 at line 1 column 28",
        ),
        hostile("tensor_twice", file(twice, 3), "tensor `w` appears twice"),
        hostile(
            "field_twice",
            one(
                r#"{"dtype":"I8","dtype":"F32","shape":[3],"data_offsets":[0,3]}"#,
                3,
            ),
            "the header is not the JSON of a safetensors file: tensor `w`: duplicate field `dtype` at line 1 column 26",
        ),
        hostile(
            "field_missing",
            one(r#"{"dtype":"I8","shape":[3]}"#, 3),
            "the header is not the JSON of a safetensors file: tensor `w`: missing field `data_offsets` at line 1 column 31",
        ),
        hostile(
            "field_unknown",
            one(
                r#"{"dtype":"I8","shape":[3],"data_offsets":[0,3],"scale":2}"#,
                3,
            ),
            "the header is not the JSON of a safetensors file: tensor `w`: unknown field `scale`, expected one of `dtype`, `shape`, `data_offsets` at line 1 column 59",
        ),
        hostile(
            "metadata_twice",
            file(r#"{"__metadata__":{},"__metadata__":{"a":"b"}}"#, 0),
            "the header is not the JSON of a safetensors file: duplicate field `__metadata__` at line 1 column 33",
        ),
        hostile(
            "metadata_key_twice",
            file(r#"{"__metadata__":{"format":"pt","format":"tf"}}"#, 0),
            "key `format` appears twice",
        ),
        hostile(
            "metadata_number",
            file(r#"{"__metadata__":{"a":1}}"#, 0),
            "the header is not the JSON of a safetensors file: __metadata__: invalid type: integer `1`, expected a string at line 1 column 22",
        ),
        hostile(
            "offset_negative",
            one(r#"{"dtype":"I8","shape":[3],"data_offsets":[-1,2]}"#, 3),
            "the header is not the JSON of a safetensors file: tensor `w`: invalid value: integer `-1`, expected u64 at line 1 column 49",
        ),
        hostile(
            "offset_one",
            one(r#"{"dtype":"I8","shape":[3],"data_offsets":[0]}"#, 3),
            "the header is not the JSON of a safetensors file: tensor `w`: invalid length 1, expected a tuple of size 2 at line 1 column 49",
        ),
        hostile(
            "offset_three",
            one(r#"{"dtype":"I8","shape":[3],"data_offsets":[0,3,3]}"#, 3),
            "the header is not the JSON of a safetensors file: tensor `w`: trailing characters at line 1 column 52",
        ),
        hostile(
            "offset_float",
            one(r#"{"dtype":"I8","shape":[3],"data_offsets":[0,3.0]}"#, 3),
            "the header is not the JSON of a safetensors file: tensor `w`: invalid type: floating point `3.0`, expected u64 at line 1 column 52",
        ),
        hostile(
            "offset_2_64",
            one(
                r#"{"dtype":"I8","shape":[3],"data_offsets":[0,18446744073709551616]}"#,
                3,
            ),
            "the header is not the JSON of a safetensors file: tensor `w`: invalid type: floating point `1.8446744073709552e+19`, expected u64 at line 1 column 69",
        ),
    ]
}

fn span_cases() -> Vec<Case> {
    let rank_65 = format!(
        r#"{{"dtype":"I8","shape":{:?},"data_offsets":[0,1]}}"#,
        [1; 65]
    );
    vec![
        hostile(
            "dtype_unknown",
            one(r#"{"dtype":"Q4_0","shape":[32],"data_offsets":[0,18]}"#, 18),
            "tensor `w` has the unknown type `Q4_0`",
        ),
        hostile(
            "rank_65",
            one(&rank_65, 1),
            "tensor `w` has 65 dimensions, at most 64 are supported",
        ),
        hostile(
            "begin_after_end",
            one(r#"{"dtype":"I8","shape":[3],"data_offsets":[3,0]}"#, 3),
            "tensor `w` begins at 3 and ends at 0",
        ),
        hostile(
            "end_outside",
            one(r#"{"dtype":"I8","shape":[4],"data_offsets":[0,4]}"#, 3),
            "tensor `w` lies outside the file: offset 0 in the data at 61, 4 bytes, file of 64",
        ),
        hostile(
            "end_2_64",
            one(
                r#"{"dtype":"I8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}"#,
                3,
            ),
            "tensor `w` lies outside the file: offset 0 in the data at 99, 18446744073709551615 bytes, file of 102",
        ),
        hostile(
            "shape_wraps",
            one(
                r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#,
                0,
            ),
            "tensor `w` of type F32 and shape [4294967296, 4294967296]: its size overflows",
        ),
        hostile(
            "span_short",
            one(r#"{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}"#, 20),
            "tensor `w` of type F32 and shape [2, 3] needs 24 bytes, its offsets span 20",
        ),
        hostile(
            "span_long",
            one(r#"{"dtype":"BF16","shape":[5],"data_offsets":[0,20]}"#, 20),
            "tensor `w` of type BF16 and shape [5] needs 10 bytes, its offsets span 20",
        ),
        hostile(
            "gap_first",
            spans([2, 5], [5, 9], 9),
            "2 bytes before tensor `a` belong to no tensor: it begins at 2, expected 0",
        ),
        hostile(
            "gap_between",
            spans([6, 9], [0, 5], 9),
            "1 bytes before tensor `a` belong to no tensor: it begins at 6, expected 5",
        ),
        hostile(
            "overlap",
            spans([4, 9], [0, 5], 9),
            "tensors `b` and `a` overlap: the first ends at offset 5, the second begins at 4",
        ),
        hostile(
            "trailing",
            spans([0, 5], [5, 8], 11),
            "3 bytes after the last tensor belong to no tensor",
        ),
        hostile(
            "trailing_no_tensor",
            file("{}", 1),
            "1 bytes after the last tensor belong to no tensor",
        ),
    ]
}
