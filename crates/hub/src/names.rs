//! Which names from outside may become parts of a path or of an address.

use std::fmt::Write as _;

/// Longest file name of a repository; file systems take less per part, and nobody comes near.
const NAME_BYTES_MAX: usize = 1024;
/// Longest entity tag; a SHA-256 has 64.
const ETAG_BYTES_MAX: usize = 128;
/// Length of a commit hash.
const COMMIT_BYTES: usize = 40;

/// Whether a file name of a repository stays inside the folder that it is written to, on every system.
pub(crate) fn is_safe_file(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(['\\', ':'])
        && !name.chars().any(char::is_control)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether a text is a commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_BYTES && is_lower_hex(text)
}

/// Whether a text consists of the digits that hashes are written in.
pub(crate) fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether an entity tag can name a file.
pub(crate) fn is_safe_etag(etag: &str) -> bool {
    (1..=ETAG_BYTES_MAX).contains(&etag.len())
        && !etag.starts_with('.')
        && etag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A file name as it stands in an address.
pub(crate) fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_not_safe() {
        for name in [
            "config.json",
            "Q4_K_M/a b-00001-of-00002.gguf",
            "..x",
            "a..b",
        ] {
            assert!(is_safe_file(name), "{name}");
        }
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            ".",
            "a/./b",
            "a\\..\\b",
            "c:x",
            "a\0b",
            "a\nb",
        ] {
            assert!(!is_safe_file(name), "{name:?}");
        }
        assert!(!is_safe_file(&"x".repeat(1025)));
    }

    #[test]
    fn tags_and_commits_are_checked_before_they_name_files() {
        assert!(is_safe_etag("a1b2") && is_safe_etag(&"f".repeat(64)));
        for etag in ["", "../x", "a/b", ".hidden", "a b"] {
            assert!(!is_safe_etag(etag), "{etag:?}");
        }
        assert!(is_commit(&"0a".repeat(20)));
        assert!(!is_commit(&"0A".repeat(20)) && !is_commit("main"));
    }

    #[test]
    fn names_are_encoded_byte_by_byte() {
        assert_eq!(encoded("a b/\u{e9}?#%.gguf"), "a%20b/%C3%A9%3F%23%25.gguf");
    }
}
