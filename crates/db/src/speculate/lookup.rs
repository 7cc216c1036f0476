//! Prompt lookup: what followed the last time the same tokens were there. No second model, nothing to load.
//!
//! Cost: one backward scan of the sequence per draft, a comparison per token where nothing matches.

/// Tokens that must repeat before what followed them is worth a guess: single tokens repeat everywhere.
const MATCH_MIN: usize = 2;
/// Longer matches are not told apart: they agree on what follows, or the latest is as good as any.
const MATCH_MAX: usize = 16;

/// Up to `n` tokens that may follow `context`: those behind the latest of the longest earlier matches of its end.
///
/// Where the match runs into the end of the context the draft goes on from itself, which continues a repetition.
pub(super) fn lookup(context: &[u32], n: usize) -> Vec<u32> {
    let mut best: Option<(usize, usize)> = None;
    for end in (MATCH_MIN..context.len()).rev() {
        let longest = match_length(context, end);
        if longest >= MATCH_MIN && best.is_none_or(|(length, _)| longest > length) {
            best = Some((longest, end));
            if longest == MATCH_MAX {
                break;
            }
        }
    }
    let Some((_, end)) = best else {
        return Vec::new();
    };
    let mut draft: Vec<u32> = Vec::with_capacity(n);
    for at in end..end + n {
        let token = match at.checked_sub(context.len()) {
            None => context[at],
            Some(own) => draft[own],
        };
        draft.push(token);
    }
    draft
}

/// How many tokens before `end` equal the last ones of the context, at most [`MATCH_MAX`].
fn match_length(context: &[u32], end: usize) -> usize {
    let (earlier, last) = (context[..end].iter().rev(), context.iter().rev());
    earlier
        .zip(last)
        .take(MATCH_MAX)
        .take_while(|(a, b)| a == b)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_wins_over_the_latest() {
        // `2 3` twice before: behind `1 2 3` comes 4, behind the later `9 2 3` comes 5.
        let context = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3];
        assert_eq!(lookup(&context, 2), [4, 9]);
        assert_eq!(lookup(&[7, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 2), [5, 1]);
    }

    #[test]
    fn a_single_token_is_no_match() {
        assert!(lookup(&[1, 2, 3, 4, 2], 3).is_empty());
        assert!(lookup(&[], 3).is_empty());
        assert!(lookup(&[5], 3).is_empty());
    }

    #[test]
    fn a_repetition_goes_on_from_itself() {
        assert_eq!(lookup(&[8, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(lookup(&[6, 6, 6], 3), [6, 6, 6]);
        assert!(lookup(&[6, 6, 6], 0).is_empty());
    }

    #[test]
    fn equal_matches_beyond_the_limit_take_the_latest() {
        let run: Vec<u32> = (10..40).collect();
        let context = [&[1], &run[..], &[100, 2], &run[..], &[200, 1], &run[..]].concat();
        assert_eq!(lookup(&context, 1), [200]);
    }
}
