//! The manifests that users deploy with: what they name exists, and every environment names all of it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use toml::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Spin's manifest, version 2, as far as ours uses it (spinframework.dev, manifest reference): whatever is
/// not listed is a mistake.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spin {
    spin_manifest_version: u32,
    #[allow(dead_code, reason = "that it can be read is the test")]
    application: Application,
    #[serde(default)]
    variables: BTreeMap<String, Variable>,
    trigger: Trigger,
    component: BTreeMap<String, Component>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "that they can be read is the test")]
struct Application {
    name: String,
    version: String,
    description: Option<String>,
    authors: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    #[serde(default)]
    required: bool,
    default: Option<String>,
    #[serde(default)]
    #[allow(dead_code, reason = "that it can be read is the test")]
    secret: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trigger {
    http: Vec<HttpTrigger>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpTrigger {
    route: String,
    component: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Component {
    source: String,
    allowed_outbound_hosts: Vec<String>,
    key_value_stores: Vec<String>,
    variables: BTreeMap<String, String>,
    build: Build,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    command: String,
    watch: Vec<String>,
}

#[test]
fn the_spin_manifest_names_what_is_built_and_nothing_that_is_not_declared() -> Result<()> {
    let spin: Spin = toml::from_str(&fs::read_to_string(root().join("spin.toml"))?)?;
    assert_eq!(spin.spin_manifest_version, 2);
    let [trigger] = spin.trigger.http.as_slice() else { panic!("one route: {:?}", spin.trigger) };
    assert_eq!(trigger.route, "/...");
    let gate = spin.component.get(&trigger.component).context("the trigger names no component")?;
    ensure!(root().join(&gate.source).is_file(), "{} is not built: make wasm", gate.source);
    ensure!(gate.build.command.contains("flashgate-spin") && !gate.build.watch.is_empty());
    assert_eq!(gate.key_value_stores, ["default"]);
    // A variable is either required or has a default, and every one that is used is declared.
    for (name, variable) in &spin.variables {
        ensure!(variable.required != variable.default.is_some(), "{name}: required, or a default");
    }
    for used in gate.variables.values().chain(&gate.allowed_outbound_hosts) {
        let name = used.trim_start_matches("{{").trim_end_matches("}}").trim();
        ensure!(spin.variables.contains_key(name), "{used} is not declared");
    }
    // The component reads these by name.
    let names: BTreeSet<_> = gate.variables.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["document_keys", "edge_key", "origin_url"]));
    Ok(())
}

#[test]
fn every_environment_of_the_worker_has_all_its_bindings() -> Result<()> {
    let wrangler: Value = toml::from_str(&fs::read_to_string(root().join("wrangler.toml"))?)?;
    let environments = wrangler.get("env").and_then(Value::as_table).context("no environments")?;
    let names: BTreeSet<_> = environments.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["production", "staging"]));
    for (name, place) in environments.iter().map(|(name, place)| (name.as_str(), place)).chain([("dev", &wrangler)]) {
        let bound = |list: &[&str], key: &str| -> Result<Vec<String>> {
            let found = list.iter().try_fold(place, |at, part| at.get(part));
            let found = found.and_then(Value::as_array).with_context(|| format!("{name}: no {list:?}"))?;
            Ok(found.iter().filter_map(|binding| binding.get(key)?.as_str().map(str::to_owned)).collect())
        };
        assert_eq!(bound(&["durable_objects", "bindings"], "class_name")?, ["LeaseDesk"], "{name}");
        assert_eq!(bound(&["durable_objects", "bindings"], "name")?, ["LEASES"], "{name}");
        assert_eq!(bound(&["kv_namespaces"], "binding")?, ["SALES"], "{name}");
        assert_eq!(bound(&["ratelimits"], "name")?, ["SHIELD"], "{name}");
        let vars = place.get("vars").and_then(Value::as_table).with_context(|| format!("{name}: no vars"))?;
        let vars: BTreeSet<_> = vars.keys().map(String::as_str).collect();
        assert_eq!(vars, BTreeSet::from(["DOCUMENT_KEYS", "ORIGIN_URL"]), "{name}");
    }
    // Its class needs a migration, its main file and its build exist.
    let text = |path: &[&str]| path.iter().try_fold(&wrangler, |at, part| at.get(part)).and_then(Value::as_str);
    for path in [&["main"][..], &["build", "command"]] {
        let file = text(path).with_context(|| format!("no {path:?}"))?;
        ensure!(root().join(file).is_file(), "{file} is missing: make worker");
    }
    let migrated = wrangler.get("migrations").map(ToString::to_string).unwrap_or_default();
    ensure!(migrated.contains("LeaseDesk"), "{migrated}");
    let entry = fs::read_to_string(root().join("target/worker/index.js"))?;
    ensure!(entry.contains("LeaseDesk"), "the built Worker exports no LeaseDesk");
    Ok(())
}
