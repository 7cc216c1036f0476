//! [`Writer`]: declares tensors, writes the header, then streams.
//!
//! The output is what the reference implementation writes for the same tensors in the same
//! order: compact JSON, padded with spaces to a multiple of 8, data without gaps.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;

use super::{MAX_HEADER_BYTES, MAX_RANK, METADATA_KEY};
use crate::error::{Error, MEMORY, OUTPUT};
use crate::stream::{TensorStream, output_error};
use crate::tensor::TensorInfo;

/// The data begins at a multiple of this.
const HEADER_ALIGNMENT: usize = 8;

/// The header of a file to be. [`Writer::begin`] turns it into a [`TensorStream`].
#[derive(Debug)]
pub struct Writer {
    json: String,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
    offset: u64,
    /// [`MAX_HEADER_BYTES`], but in tests.
    limit: u64,
}

impl Writer {
    /// Starts a header. `metadata` becomes `__metadata__` (stock tools want `format` = `pt`),
    /// which is left out if there is none.
    ///
    /// # Errors
    /// [`Error::Limit`] if the header would exceed what readers accept.
    pub fn new(metadata: &BTreeMap<String, String>) -> Result<Writer, Error> {
        let mut writer = Writer {
            json: String::from("{"),
            tensors: Vec::new(),
            names: HashSet::new(),
            offset: 0,
            limit: MAX_HEADER_BYTES,
        };
        if !metadata.is_empty() {
            let object = serde_json::to_string(metadata).expect("a map of strings is JSON");
            writer.entry(METADATA_KEY, &object)?;
        }
        Ok(writer)
    }

    /// Adds a tensor; the order of declaration is the order in the file.
    ///
    /// # Errors
    /// [`Error::DuplicateTensor`], [`Error::Rank`], [`Error::NoContainerType`],
    /// [`Error::DeclaredBytes`], [`Error::SizeOverflow`], [`Error::Limit`].
    pub fn declare(&mut self, tensor: TensorInfo) -> Result<(), Error> {
        let Some(dtype) = tensor.dtype.to_safetensors() else {
            return Err(Error::NoContainerType {
                tensor: tensor.name,
                dtype: tensor.dtype,
                container: "safetensors",
            });
        };
        if tensor.shape.len() > MAX_RANK {
            return Err(Error::Rank {
                path: MEMORY.into(),
                rank: tensor.shape.len() as u64,
                tensor: tensor.name,
                max: MAX_RANK as u64,
            });
        }
        tensor.check_n_bytes()?;
        if tensor.name == METADATA_KEY || !self.names.insert(tensor.name.clone()) {
            return Err(Error::DuplicateTensor {
                path: MEMORY.into(),
                tensor: tensor.name,
            });
        }
        let begin = self.offset;
        let Some(end) = begin.checked_add(tensor.n_bytes) else {
            return Err(Error::SizeOverflow {
                path: OUTPUT.into(),
                tensor: tensor.name,
                dtype: tensor.dtype,
                shape: tensor.shape,
            });
        };
        let shape = serde_json::to_string(&tensor.shape).expect("a list of integers is JSON");
        let object =
            format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#);
        self.entry(&tensor.name, &object)?;
        self.offset = end;
        self.tensors.push(tensor);
        Ok(())
    }

    /// Writes the header to `out`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin<W: Write>(mut self, mut out: W) -> Result<TensorStream<W>, Error> {
        self.json.push('}');
        while !self.json.len().is_multiple_of(HEADER_ALIGNMENT) {
            self.json.push(' ');
        }
        let length = self.json.len() as u64;
        out.write_all(&length.to_le_bytes())
            .and_then(|()| out.write_all(self.json.as_bytes()))
            .map_err(output_error)?;
        Ok(TensorStream::new(out, self.tensors, 1))
    }

    fn entry(&mut self, key: &str, object: &str) -> Result<(), Error> {
        // Before escaping, which only makes it longer: a hopeless name costs nothing.
        self.check_length(self.json.len() + key.len() + object.len())?;
        let key = serde_json::to_string(key).expect("a string is JSON");
        let comma = if self.json.len() > 1 { "," } else { "" };
        let entry = format!("{comma}{key}:{object}");
        let closed = self.json.len() + entry.len() + 1;
        self.check_length(closed.next_multiple_of(HEADER_ALIGNMENT))?;
        self.json += &entry;
        Ok(())
    }

    fn check_length(&self, length: usize) -> Result<(), Error> {
        if length as u64 <= self.limit {
            return Ok(());
        }
        Err(Error::Limit {
            path: OUTPUT.into(),
            what: "the header length".into(),
            value: length as u64,
            limit: self.limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn the_limit_counts_the_padded_header_and_a_refused_tensor_is_not_in_it() {
        let mut writer = Writer::new(&BTreeMap::new()).unwrap();
        // Two entries make 106 bytes, a third 160, of which 153 are certain before escaping.
        writer.limit = 159;
        let mut declare =
            |name: &str| writer.declare(TensorInfo::new(name, Dtype::U8, vec![9]).unwrap());
        declare("a").unwrap();
        declare("b").unwrap();
        assert_eq!(
            declare("c").unwrap_err().to_string(),
            "(output): the header length is 160, the limit is 159"
        );
        let mut stream = writer.begin(Vec::new()).unwrap();
        stream.write_tensor_bytes("a", &[1; 9]).unwrap();
        stream.write_tensor_bytes("b", &[2; 9]).unwrap();
        assert_eq!(stream.finish().unwrap().len(), 8 + 112 + 18);
    }
}
