//! What the documents name exists: a test that is renamed must not leave a promise behind.

use anyhow::{Context, Result, ensure};
use std::{fs, path::Path};

/// Whether this file of a suite has a test of this name; `*` is any.
fn has_test(file: &Path, name: &str) -> Result<bool> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(name == "*" || text.contains(&format!("fn {name}(")))
}

/// The tests of the end-to-end suites that a document names as `suite::test` or `faults::module::test`.
fn named(document: &str) -> Vec<Vec<&str>> {
    let code = document.split('`').skip(1).step_by(2);
    let paths = code.map(|code| code.split("::").collect::<Vec<_>>());
    paths.filter(|path| path.len() > 1 && path.iter().all(|part| !part.is_empty() && !part.contains(' '))).collect()
}

fn check(document: &str, tests_at_least: usize) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../docs").join(document))?;
    let (mut found, mut missing) = (0, Vec::new());
    for path in named(&text) {
        let file = match &path[..] {
            ["faults", module, _] => root.join(format!("tests/faults/{module}.rs")),
            [suite, _] => root.join(format!("tests/{suite}.rs")),
            _ => continue,
        };
        let name = path.last().context("an empty path")?;
        // Other suites' modules are named after the crate they belong to.
        if !file.is_file() {
            if path[0] == "faults" {
                missing.push(path.join("::"));
            }
            continue;
        }
        found += 1;
        if !has_test(&file, name)? {
            missing.push(path.join("::"));
        }
    }
    ensure!(missing.is_empty(), "{document} names tests that do not exist: {missing:?}");
    ensure!(found >= tests_at_least, "only {found} tests are named in {document}");
    Ok(())
}

#[test]
fn every_test_that_the_failures_name_exists() -> Result<()> {
    check("FAILURES.md", 70)
}

#[test]
fn every_test_that_the_threat_model_names_exists() -> Result<()> {
    check("SECURITY.md", 15)
}

#[test]
fn every_window_on_the_running_shop_names_a_test_of_the_fault_suite() -> Result<()> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/FAILURES.md"))?;
    let shop = text.split("## ").find(|part| part.starts_with("On the running shop")).context("no such part")?;
    let windows: Vec<&str> = shop.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    ensure!(windows.len() >= 60, "only {} windows", windows.len());
    let bare: Vec<&&str> = windows.iter().filter(|window| !window.contains("`faults::")).collect();
    ensure!(bare.is_empty(), "without a test of the fault suite: {bare:#?}");
    Ok(())
}
