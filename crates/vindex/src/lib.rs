//! The vindex directory: manifest, digests, weights, feature and knowledge tables
