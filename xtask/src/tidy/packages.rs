//! Rules about crates and their dependencies, from `cargo metadata` and the workspace manifest.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

use super::Finding;
use crate::process;

/// What each crate may depend on besides tests: the arrows of ARCHITECTURE.md.
const ARROWS: &[(&str, &[&str])] = &[
    ("larql-kernels", &[]),
    ("larql-formats", &[]),
    ("larql-lql", &[]),
    ("larql-hub", &[]),
    ("larql-models", &["larql-kernels", "larql-formats"]),
    (
        "larql-vindex",
        &["larql-kernels", "larql-formats", "larql-models"],
    ),
    (
        "larql-engine",
        &[
            "larql-kernels",
            "larql-formats",
            "larql-models",
            "larql-vindex",
        ],
    ),
    (
        "larql-db",
        &[
            "larql-kernels",
            "larql-formats",
            "larql-models",
            "larql-vindex",
            "larql-engine",
            "larql-lql",
        ],
    ),
    (
        "larql-cli",
        &[
            "larql-kernels",
            "larql-formats",
            "larql-models",
            "larql-vindex",
            "larql-engine",
            "larql-lql",
            "larql-db",
            "larql-hub",
        ],
    ),
    ("larql-testkit", &["larql-kernels", "larql-formats"]),
    (
        "xtask",
        &[
            "larql-kernels",
            "larql-formats",
            "larql-models",
            "larql-vindex",
            "larql-engine",
            "larql-db",
        ],
    ),
];

/// Crates that promise to depend on nothing at all.
const WITHOUT_DEPENDENCIES: &[&str] = &["larql-lql"];

/// Heavy or policy-bearing dependencies and the crates that may use them.
const FENCED: &[(&str, &[&str])] = &[
    ("anyhow", &["larql-cli", "xtask"]),
    ("clap", &["larql-cli", "xtask"]),
    ("hf-hub", &["larql-hub"]),
    ("memmap2", &["larql-formats"]),
    ("rusqlite", &["larql-vindex", "larql-db"]),
    ("tokenizers", &["larql-models"]),
    ("tokio", &["larql-server"]),
    ("ureq", &["larql-hub"]),
];

const LICENSES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // The list of root certificates, which is data.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

/// The packages of this workspace and of everything it is built from.
pub(crate) struct Workspace {
    packages: Vec<Package>,
    /// Source files of all cargo targets, relative to the root.
    pub(crate) target_roots: Vec<String>,
}

struct Package {
    name: String,
    license: Option<String>,
    /// The manifest relative to the root, for members of the workspace.
    member: Option<String>,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    is_dev: bool,
}

impl Workspace {
    /// Asks cargo, for the platform of this machine, so that no foreign crate is downloaded.
    pub(crate) fn load(root: &Path) -> Result<Workspace> {
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .other_options(vec!["--filter-platform".to_owned(), host(root)?])
            .exec()
            .context("cannot run `cargo metadata`")?;
        let relative = |path: &Path| {
            let path = path.strip_prefix(root).unwrap_or(path);
            path.to_string_lossy().replace('\\', "/")
        };
        let used: BTreeSet<_> = metadata
            .resolve
            .iter()
            .flat_map(|resolve| resolve.nodes.iter().map(|node| &node.id))
            .collect();
        let mut packages = Vec::new();
        let mut target_roots = Vec::new();
        for package in metadata.packages.iter().filter(|p| used.contains(&p.id)) {
            let member = metadata.workspace_members.contains(&package.id);
            if member {
                let sources = package
                    .targets
                    .iter()
                    .map(|t| relative(t.src_path.as_std_path()));
                target_roots.extend(sources);
            }
            let dependencies = package.dependencies.iter().map(|dependency| Dependency {
                name: dependency.name.clone(),
                is_dev: dependency.kind == DependencyKind::Development,
            });
            packages.push(Package {
                name: package.name.to_string(),
                license: package.license.clone(),
                member: member.then(|| relative(package.manifest_path.as_std_path())),
                dependencies: dependencies.collect(),
            });
        }
        Ok(Workspace {
            packages,
            target_roots,
        })
    }

    /// All rules of this module; `manifest` is the text of the root `Cargo.toml`.
    pub(crate) fn check(&self, manifest: &str, out: &mut Vec<Finding>) {
        self.arrows(out);
        self.fences(out);
        self.licenses(out);
        self.declared(manifest, out);
    }

    fn members(&self) -> impl Iterator<Item = (&str, &Package)> {
        self.packages
            .iter()
            .filter_map(|package| Some((package.member.as_deref()?, package)))
    }

    fn arrows(&self, out: &mut Vec<Finding>) {
        let ours: BTreeSet<&str> = self.members().map(|(_, p)| p.name.as_str()).collect();
        for (manifest, package) in self.members() {
            let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
                let message = format!(
                    "`{}` has no arrows; add it to ARROWS and to ARCHITECTURE.md",
                    package.name
                );
                out.push(Finding::new(manifest, 1, "dependency-arrow", message));
                continue;
            };
            for name in package.normal_dependencies() {
                if ours.contains(name) && !allowed.contains(&name) {
                    let message = format!(
                        "{} -> {name}; arrows point down: move the shared part below both",
                        package.name
                    );
                    out.push(Finding::new(manifest, 1, "dependency-arrow", message));
                }
            }
        }
    }

    fn fences(&self, out: &mut Vec<Finding>) {
        for (manifest, package) in self.members() {
            for name in package.normal_dependencies() {
                if WITHOUT_DEPENDENCIES.contains(&package.name.as_str()) {
                    let message =
                        format!("{} -> {name}; this crate depends on nothing", package.name);
                    out.push(Finding::new(manifest, 1, "fenced-dependency", message));
                }
                let fence = FENCED.iter().find(|(fenced, _)| *fenced == name);
                if let Some((_, allowed)) = fence
                    && !allowed.contains(&package.name.as_str())
                {
                    let message = format!(
                        "{} -> {name}; only {} may use it",
                        package.name,
                        allowed.join(", ")
                    );
                    out.push(Finding::new(manifest, 1, "fenced-dependency", message));
                }
            }
        }
    }

    fn licenses(&self, out: &mut Vec<Finding>) {
        for Package { name, license, .. } in &self.packages {
            let shown = license.as_deref().unwrap_or("none");
            if !is_allowed(shown) {
                let message = format!(
                    "`{name}` is under `{shown}`; choose another crate, or add the licence to LICENSES"
                );
                out.push(Finding::new("Cargo.lock", 1, "license", message));
            }
        }
    }

    /// Every entry of `[workspace.dependencies]` has a reason above it and a user.
    fn declared(&self, manifest: &str, out: &mut Vec<Finding>) {
        let used: BTreeSet<&str> = self
            .members()
            .flat_map(|(_, package)| package.dependencies.iter().map(|d| d.name.as_str()))
            .collect();
        let mut inside = false;
        let mut reason = false;
        for (i, line) in manifest.lines().enumerate() {
            if line.starts_with('[') {
                inside = line == "[workspace.dependencies]";
            }
            if line.is_empty() || line.starts_with('#') {
                reason = !line.is_empty();
            }
            let Some((name, value)) = line.split_once(" = ").filter(|_| inside) else {
                continue;
            };
            if !reason && !value.contains("path = ") {
                let message =
                    format!("`{name}` has no reason; write a comment above it or above its group");
                out.push(Finding::new(
                    "Cargo.toml",
                    i + 1,
                    "dependency-reason",
                    message,
                ));
            }
            if !name.starts_with('#') && !used.contains(name) {
                let message = format!("no member uses `{name}`; remove it");
                out.push(Finding::new(
                    "Cargo.toml",
                    i + 1,
                    "unused-dependency",
                    message,
                ));
            }
        }
    }
}

impl Package {
    fn normal_dependencies(&self) -> impl Iterator<Item = &str> {
        self.dependencies
            .iter()
            .filter(|dependency| !dependency.is_dev)
            .map(|dependency| dependency.name.as_str())
    }
}

/// The platform triple of this machine, as rustc names it.
fn host(root: &Path) -> Result<String> {
    let version = process::stdout(
        std::process::Command::new("rustc")
            .current_dir(root)
            .arg("-vV"),
    )?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`rustc -vV` names no host")
}

/// Whether an SPDX expression can be satisfied from [`LICENSES`]; `/` is an old spelling of OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any_of(&mut rest) == Some(true) && rest.is_empty()
}

/// `all { OR all }`; none when the expression is malformed.
fn any_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = all_of(rest)?;
    while let ["OR", tail @ ..] = *rest {
        *rest = tail;
        allowed |= all_of(rest)?;
    }
    Some(allowed)
}

/// `one { AND one }`
fn all_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(rest)?;
    while let ["AND", tail @ ..] = *rest {
        *rest = tail;
        allowed &= one(rest)?;
    }
    Some(allowed)
}

/// `( any )`, `licence WITH exception` or `licence`
fn one(rest: &mut &[&str]) -> Option<bool> {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let allowed = any_of(rest)?;
            let [")", tail @ ..] = *rest else {
                return None;
            };
            *rest = tail;
            Some(allowed)
        }
        [license, "WITH", exception, tail @ ..] => {
            *rest = tail;
            Some(LICENSES.contains(&format!("{license} WITH {exception}").as_str()))
        }
        [license, tail @ ..] => {
            *rest = tail;
            Some(LICENSES.contains(license))
        }
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, normal: &[&str], dev: &[&str]) -> Package {
        let dependency = |is_dev: bool| {
            move |name: &&str| Dependency {
                name: (*name).to_owned(),
                is_dev,
            }
        };
        Package {
            name: name.to_owned(),
            license: Some("MIT".to_owned()),
            member: Some(format!("{name}/Cargo.toml")),
            dependencies: normal
                .iter()
                .map(dependency(false))
                .chain(dev.iter().map(dependency(true)))
                .collect(),
        }
    }

    fn workspace(packages: Vec<Package>) -> Workspace {
        Workspace {
            packages,
            target_roots: Vec::new(),
        }
    }

    fn messages(check: impl FnOnce(&mut Vec<Finding>)) -> Vec<String> {
        let mut out = Vec::new();
        check(&mut out);
        out.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn arrows_point_down() {
        let found = workspace(vec![
            package(
                "larql-kernels",
                &["larql-formats", "libc"],
                &["larql-testkit"],
            ),
            package("larql-formats", &[], &[]),
            package("larql-models", &["larql-kernels", "larql-testkit"], &[]),
            package("larql-testkit", &["larql-formats"], &[]),
            package("larql-extra", &[], &[]),
        ]);
        let found = messages(|out| found.arrows(out));
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with("larql-kernels -> larql-formats;"));
        assert!(found[1].starts_with("larql-models -> larql-testkit;"));
        assert!(found[2].starts_with("`larql-extra` has no arrows;"));
    }

    #[test]
    fn fenced_dependencies_stay_in_their_crates() {
        let found = workspace(vec![
            package("larql-db", &["anyhow", "rusqlite"], &[]),
            package("larql-cli", &["anyhow"], &[]),
            package("larql-lql", &["serde"], &["proptest"]),
        ]);
        let found = messages(|out| found.fences(out));
        assert_eq!(
            found,
            [
                "larql-db -> anyhow; only larql-cli, xtask may use it",
                "larql-lql -> serde; this crate depends on nothing"
            ]
        );
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT AND (GPL-3.0 OR AGPL-3.0)",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "MIT OR",
            "(MIT",
            "MIT MIT",
            "none",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn a_package_without_a_licence_is_found() {
        let mut odd = package("odd", &[], &[]);
        odd.license = None;
        let found = workspace(vec![odd, package("fine", &[], &[])]);
        let found = messages(|out| found.licenses(out));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("`odd` is under `none`"));
    }

    #[test]
    fn every_declared_dependency_has_a_reason_and_a_user() {
        let manifest = "[workspace.dependencies]\nlarql-a = { path = \"a\" }\n\n# Why.\nb = \"1\"\nc = \"1\"\n\nd = \"1\"\n\n[profile.dev]\ne = 1\n";
        let found = workspace(vec![package("x", &["larql-a", "b"], &["d"])]);
        let mut out = Vec::new();
        found.declared(manifest, &mut out);
        let found: Vec<_> = out.iter().map(|f| (f.line, f.rule)).collect();
        assert_eq!(found, [(6, "unused-dependency"), (8, "dependency-reason")]);
    }
}
