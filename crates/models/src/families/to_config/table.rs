//! Which class of transformers says a spec.

use serde_json::{Map, Value};

use super::keys::{Keys, Unsayable, softmax_layers};
use super::{dense, gemma, mixers, moe};
use crate::error::ModelError;
use crate::spec::ModelSpec;

/// A class of transformers, and the specs of a family that it says.
struct Class {
    /// The family, as [`ModelSpec::family`] has it.
    family: &'static str,
    /// Which of the family's specs; the first row that fits is taken.
    fits: fn(&ModelSpec) -> bool,
    model_type: &'static str,
    architecture: &'static str,
    write: fn(&ModelSpec) -> Result<Keys, Unsayable>,
    /// The id of padding that the class takes for granted, if one: it refuses vocabularies without such an id.
    padding: Option<u32>,
}

const fn class(
    family: &'static str,
    model_type: &'static str,
    architecture: &'static str,
    write: fn(&ModelSpec) -> Result<Keys, Unsayable>,
) -> Class {
    Class {
        family,
        fits: |_| true,
        model_type,
        architecture,
        write,
        padding: None,
    }
}

const CLASSES: &[Class] = &[
    // GGUF files of both are alike; only Mistral's class has windows.
    Class {
        fits: |spec| softmax_layers(spec).all(|attention| attention.window.is_none()),
        ..class("llama", "llama", "LlamaForCausalLM", dense::llama)
    },
    class("llama", "mistral", "MistralForCausalLM", dense::mistral),
    class("mistral", "mistral", "MistralForCausalLM", dense::mistral),
    class("mixtral", "mixtral", "MixtralForCausalLM", moe::mixtral),
    class("qwen2", "qwen2", "Qwen2ForCausalLM", dense::qwen2),
    class("qwen3", "qwen3", "Qwen3ForCausalLM", dense::qwen3),
    class("qwen2-moe", "qwen2_moe", "Qwen2MoeForCausalLM", moe::qwen2),
    class("qwen3-moe", "qwen3_moe", "Qwen3MoeForCausalLM", moe::qwen3),
    class(
        "qwen3-next",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        mixers::qwen3_next,
    ),
    class("olmo2", "olmo2", "Olmo2ForCausalLM", dense::olmo2),
    class("olmoe", "olmoe", "OlmoeForCausalLM", moe::olmoe),
    class("phi", "phi", "PhiForCausalLM", dense::phi),
    Class {
        padding: Some(32_000),
        ..class("phi3", "phi3", "Phi3ForCausalLM", dense::phi3)
    },
    class("granite", "granite", "GraniteForCausalLM", dense::granite),
    class(
        "granitemoe",
        "granitemoe",
        "GraniteMoeForCausalLM",
        moe::granite,
    ),
    class(
        "starcoder2",
        "starcoder2",
        "Starcoder2ForCausalLM",
        dense::starcoder2,
    ),
    class("gpt2", "gpt2", "GPT2LMHeadModel", dense::gpt2),
    class("gpt-oss", "gpt_oss", "GptOssForCausalLM", moe::gpt_oss),
    class("cohere2", "cohere2", "Cohere2ForCausalLM", dense::cohere2),
    Class {
        padding: Some(128_004),
        ..class("smollm3", "smollm3", "SmolLM3ForCausalLM", dense::smollm3)
    },
    Class {
        padding: Some(151_329),
        ..class("glm4", "glm4", "Glm4ForCausalLM", dense::glm4)
    },
    class("arcee", "arcee", "ArceeForCausalLM", dense::arcee),
    class(
        "stablelm",
        "stablelm",
        "StableLmForCausalLM",
        dense::stablelm,
    ),
    class(
        "deepseek-v2",
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        mixers::deepseek_v2,
    ),
    class(
        "deepseek-v3",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        mixers::deepseek_v3,
    ),
    class("gemma", "gemma", "GemmaForCausalLM", gemma::one),
    class("gemma2", "gemma2", "Gemma2ForCausalLM", gemma::two),
    class("gemma3", "gemma3_text", "Gemma3ForCausalLM", gemma::three),
    class(
        "gemma3n",
        "gemma3n_text",
        "Gemma3nForCausalLM",
        gemma::three_n,
    ),
    class("gemma4", "gemma4_text", "Gemma4ForCausalLM", gemma::four),
    Class {
        padding: Some(163_839),
        ..class(
            "kimi-linear",
            "kimi_linear",
            "KimiLinearForCausalLM",
            mixers::kimi_linear,
        )
    },
];

/// The configuration of a spec, for the class of its family.
///
/// # Errors
/// If the family has no class, or the class has no keys for what the spec says.
pub(crate) fn to_config(origin: &str, spec: &ModelSpec) -> Result<Map<String, Value>, ModelError> {
    let refused = |difference: String| ModelError::NoConfig {
        origin: origin.to_owned(),
        family: spec.family.clone(),
        difference,
    };
    let mut of_family = CLASSES.iter().filter(|class| class.family == spec.family);
    let Some(class) = of_family.find(|class| (class.fits)(spec)) else {
        let mut known: Vec<&str> = CLASSES.iter().map(|class| class.family).collect();
        known.dedup();
        let known = known.join(", ");
        return Err(refused(format!(
            "what the model is, since only these families have a class: {known}"
        )));
    };
    let mut keys = (class.write)(spec).map_err(|Unsayable(what)| refused(what))?;
    keys.put("model_type", class.model_type);
    keys.put("architectures", vec![class.architecture]);
    if class.padding.is_some_and(|id| id >= spec.d_vocab) {
        keys.put("pad_token_id", Value::Null);
    }
    Ok(keys.into_map())
}

/// The class whose forward pass a `model_type` stands for, as files name it, and what may come after the same stem.
pub(crate) fn is_class_of(model_type: &str, architecture: &str) -> bool {
    // The wrappers for several modalities nest the decoder that a row is about.
    let text = format!("{model_type}_text");
    let mut classes = CLASSES
        .iter()
        .filter(|class| class.model_type == model_type || class.model_type == text);
    classes.any(|class| {
        let stem = class
            .architecture
            .trim_end_matches("ForCausalLM")
            .trim_end_matches("LMHeadModel");
        architecture.strip_prefix(stem).is_some_and(|rest| {
            [
                "ForCausalLM",
                "ForConditionalGeneration",
                "LMHeadModel",
                "Model",
            ]
            .contains(&rest)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::FAMILIES;

    #[test]
    fn every_family_has_a_class_that_its_reader_knows() {
        for family in FAMILIES {
            let class = CLASSES.iter().find(|class| class.family == family.name);
            let class = class.unwrap_or_else(|| panic!("{}", family.name));
            assert!(
                family.hf_model_types.contains(&class.model_type),
                "{}",
                family.name
            );
        }
    }
}
