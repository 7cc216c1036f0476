//! [`fold_layers()`]: sentences about many layers become one.
//!
//! Knows how layers are named in sentences, in names of tensors and in fields of a spec, and nothing of what is said.

/// One line for all notes that differ only in the layer they name, in the place of the first.
pub fn fold_layers(notes: Vec<String>) -> Vec<String> {
    let mut groups: Vec<(String, Vec<String>, Vec<u32>)> = Vec::new();
    for note in notes {
        let Some((pattern, layer)) = layer_of(&note) else {
            groups.push((note.clone(), vec![note], vec![]));
            continue;
        };
        match groups.iter_mut().find(|(key, ..)| *key == pattern) {
            Some((_, own, layers)) => {
                own.push(note);
                layers.push(layer);
            }
            None => groups.push((pattern, vec![note], vec![layer])),
        }
    }
    let line = |(pattern, mut own, mut layers): (String, Vec<String>, Vec<u32>)| {
        if own.len() == 1 {
            return own.remove(0);
        }
        layers.sort_unstable();
        layers.dedup();
        pattern.replace(PLACE, &ranges(&layers))
    };
    groups.into_iter().map(line).collect()
}

/// Stands for the number of a layer in the pattern of a note.
const PLACE: char = '\0';
/// What stands before the number of a layer, in sentences and in names of tensors and fields.
const BEFORE: [&str; 5] = ["layer ", "layers[", "layers.", "blk.", "h."];

/// The note without the number of the only layer it names, and that number.
fn layer_of(note: &str) -> Option<(String, u32)> {
    let at = BEFORE.iter().find_map(|before| {
        note.match_indices(before)
            .map(|(at, _)| at + before.len())
            .find(|at| note[*at..].starts_with(|ch: char| ch.is_ascii_digit()))
    })?;
    let end = note[at..]
        .find(|ch: char| !ch.is_ascii_digit())
        .map_or(note.len(), |n| at + n);
    let layer = note[at..end].parse().ok()?;
    Some((format!("{}{PLACE}{}", &note[..at], &note[end..]), layer))
}

/// `0-3, 7` of ascending numbers.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let runs: Vec<String> = runs
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run.iter().map(u32::to_string).collect(),
        })
        .collect();
    runs.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_several_layers_become_one() {
        let note = |text: &str| text.to_owned();
        let folded = fold_layers(vec![
            note("layers[2].mixer.window is 9 and would be null"),
            note("quantized to q8_0"),
            note("layers[0].mixer.window is 9 and would be null"),
            note("layers[1].mixer.window is 8 and would be null"),
            note("blk.3.attn_k.weight is F16"),
            note("layers[3].mixer.window is 9 and would be null"),
            note("from layer 20 on"),
        ]);
        let want = [
            "layers[0, 2-3].mixer.window is 9 and would be null",
            "quantized to q8_0",
            "layers[1].mixer.window is 8 and would be null",
            "blk.3.attn_k.weight is F16",
            "from layer 20 on",
        ];
        assert_eq!(folded, want);
    }
}
