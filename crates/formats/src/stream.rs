//! [`TensorStream`]: the data section of either container, written in declared order.
//!
//! The header is on disk before the first tensor, so sizes are promises: this type keeps the
//! order and the byte counts, and refuses to finish a file whose header would lie. It holds no
//! tensor in memory.

use std::io::{self, Write};

use crate::error::{Error, OUTPUT};
use crate::tensor::TensorInfo;

/// Zeros for padding, written in pieces of this size.
const ZEROS: [u8; 64] = [0; 64];

/// Accepts the tensors that a header has declared, one after the other.
pub struct TensorStream<W> {
    out: W,
    tensors: Vec<TensorInfo>,
    /// Index of the tensor that is due.
    next: usize,
    /// Each tensor is padded with zeros to a multiple of this.
    alignment: u64,
}

impl<W: Write> TensorStream<W> {
    pub(crate) fn new(out: W, tensors: Vec<TensorInfo>, alignment: u64) -> TensorStream<W> {
        TensorStream {
            out,
            tensors,
            next: 0,
            alignment,
        }
    }

    /// The declared tensor that must be written next; `None` when all are written.
    pub fn next_tensor(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Writes the data of `name` in as many chunks as `write` likes.
    ///
    /// # Errors
    /// What `write` returns; [`Error::WrongOrder`] if another tensor is due;
    /// [`Error::TensorBytes`] if `write` gave fewer or more bytes than declared; [`Error::Io`].
    pub fn write_tensor<E: From<Error>>(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut Sink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(tensor) = self.tensors.get(self.next).filter(|t| t.name == name) else {
            return Err(E::from(Error::WrongOrder {
                tensor: name.to_owned(),
                expected: self.next_tensor().map(|t| t.name.clone()),
            }));
        };
        let declared = tensor.n_bytes;
        let mut sink = Sink {
            out: &mut self.out,
            tensor: name,
            declared,
            written: 0,
        };
        write(&mut sink)?;
        if sink.written != declared {
            return Err(E::from(sink.wrong_length(0)));
        }
        self.pad(declared).map_err(E::from)?;
        self.next += 1;
        Ok(())
    }

    /// Writes the data of `name` from one slice.
    ///
    /// # Errors
    /// As [`TensorStream::write_tensor`].
    pub fn write_tensor_bytes(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.write_tensor(name, |sink| sink.put(data))
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if a declared tensor was not written; [`Error::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(tensor) = self.next_tensor() {
            return Err(Error::Unfinished {
                tensor: tensor.name.clone(),
                n_missing: self.tensors.len() - self.next,
            });
        }
        self.out.flush().map_err(output_error)?;
        Ok(self.out)
    }

    fn pad(&mut self, n_bytes: u64) -> Result<(), Error> {
        let mut rest = n_bytes.next_multiple_of(self.alignment) - n_bytes;
        while rest > 0 {
            let n = rest.min(ZEROS.len() as u64);
            self.out
                .write_all(&ZEROS[..n as usize])
                .map_err(output_error)?;
            rest -= n;
        }
        Ok(())
    }
}

/// Where the chunks of one tensor go. Also an [`io::Write`], for readers that copy.
pub struct Sink<'a> {
    out: &'a mut dyn Write,
    tensor: &'a str,
    declared: u64,
    written: u64,
}

impl Sink<'_> {
    /// Appends a chunk.
    ///
    /// # Errors
    /// [`Error::TensorBytes`] as soon as the tensor would exceed its declared size; [`Error::Io`].
    pub fn put(&mut self, chunk: &[u8]) -> Result<(), Error> {
        if chunk.len() as u64 > self.declared - self.written {
            return Err(self.wrong_length(chunk.len() as u64));
        }
        self.out.write_all(chunk).map_err(output_error)?;
        self.written += chunk.len() as u64;
        Ok(())
    }

    fn wrong_length(&self, more: u64) -> Error {
        Error::TensorBytes {
            tensor: self.tensor.to_owned(),
            declared: self.declared,
            written: self.written + more,
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        self.put(chunk).map_err(|error| match error {
            Error::Io { source, .. } => source,
            error => io::Error::other(error),
        })?;
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(crate) fn output_error(source: io::Error) -> Error {
    Error::Io {
        path: OUTPUT.into(),
        action: "write",
        source,
    }
}
