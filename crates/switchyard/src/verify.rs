//! `switchyard verify`: media and registry of a stopped rack, checked without changing anything.

use crate::failure::Failure;
use crate::registry::{self, EtcdUrl, Place};
use crate::size::Size;
use anyhow::bail;
use base::Device;
use base::limits::PAGE_BYTES;
use clap::Args;
use flash::{OpenError, Problem, VerifyReport};
use indicatif::{ProgressBar, ProgressStyle};
use runtime::MediaFile;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// `switchyard verify`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 clean, 1 problems found, 2 the medium is in use or not a rack's.\n\n\
    Examples:\n  switchyard verify rack-data\n  switchyard verify rack-data/node-2.img --json\n  \
    switchyard verify etcd://10.0.0.21:2379,10.0.0.22:2379/rack1      the registry alone"
)]
pub struct VerifyArgs {
    /// A rack's directory, one medium, or a registry in etcd
    #[arg(value_name = "DIR|FILE|URL")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Findings in one file.
struct Finding {
    path: PathBuf,
    summary: String,
    problems: Vec<Value>,
}

/// Checks a directory or one medium.
pub fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let etcd = etcd(&args.path)?;
    let files = match etcd {
        Some(_) => vec![args.path.clone()],
        None => files(&args.path)?,
    };
    let shows_progress = !args.json && std::io::stderr().is_terminal();
    let mut findings = Vec::new();
    for path in files {
        let finding = match (&etcd, path.file_name().and_then(|name| name.to_str())) {
            (Some(place), _) => {
                let bytes = place.bytes();
                check_records(
                    path,
                    &bytes.map_err(|error| Failure::Uncheckable(error.to_string()))?,
                )
            }
            (None, Some(registry::FILE_NAME)) => check_registry(path)?,
            _ => check_medium(path, shows_progress)?,
        };
        if !args.json {
            print_finding(&finding);
        }
        findings.push(finding);
    }
    let count = findings
        .iter()
        .map(|finding| finding.problems.len())
        .sum::<usize>();
    if args.json {
        let files: Vec<_> = findings
            .iter()
            .map(|f| json!({ "path": f.path, "summary": f.summary, "problems": f.problems }))
            .collect();
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({ "clean": count == 0, "files": files }))?
        );
    }
    match count {
        0 => Ok(()),
        count => bail!(Failure::Problems(count)),
    }
}

/// The files to check: the registry and every node's medium, or the one named.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let uncheckable = |text: String| Err(Failure::Uncheckable(text).into());
    if !path.exists() {
        return uncheckable(format!(
            "{} does not exist: name the directory of a rack, or a medium",
            path.display()
        ));
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)
        .map_err(|error| Failure::Uncheckable(format!("cannot read {}: {error}", path.display())))?;
    let mut media: Vec<(u8, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_prefix("node-")?.strip_suffix(".img")?.parse().ok()?;
            Some((id, entry.path()))
        })
        .collect();
    media.sort();
    let registry = path.join(registry::FILE_NAME);
    if media.is_empty() && !registry.exists() {
        return uncheckable(format!(
            "{}: not a rack's directory: there is neither {} nor a node-N.img",
            path.display(),
            registry::FILE_NAME
        ));
    }
    let mut files: Vec<PathBuf> = registry.exists().then_some(registry).into_iter().collect();
    files.extend(media.into_iter().map(|(_, path)| path));
    Ok(files)
}

/// The registry in etcd that is named, if it is one.
fn etcd(path: &Path) -> anyhow::Result<Option<Place>> {
    match path.to_str().filter(|text| EtcdUrl::is_named(text)) {
        Some(text) => Ok(Some(text.parse().map_err(Failure::Uncheckable)?)),
        None => Ok(None),
    }
}

fn check_registry(path: PathBuf) -> anyhow::Result<Finding> {
    let bytes = std::fs::read(&path)
        .map_err(|error| Failure::Uncheckable(format!("cannot read {}: {error}", path.display())))?;
    Ok(check_records(path, &bytes))
}

fn check_records(path: PathBuf, bytes: &[u8]) -> Finding {
    match registry::parse(bytes) {
        Ok(snapshot) => Finding {
            path,
            summary: format!(
                "{} nodes, {} volumes, epoch {}{}",
                snapshot.nodes.len(),
                snapshot.volumes.len(),
                snapshot.epoch,
                match snapshot.exchanging().next() {
                    Some(_) => "; an exchange of vSSDs is undone or completed at the next start",
                    None => "",
                }
            ),
            problems: Vec::new(),
        },
        Err(error) => Finding {
            path,
            summary: "damaged".into(),
            problems: vec![json!({
                "what": error.to_string(),
                "remedy": "restore it from a backup (`switchyard registry restore`); the volumes' data is not affected",
            })],
        },
    }
}

fn check_medium(path: PathBuf, shows_progress: bool) -> anyhow::Result<Finding> {
    let cannot = |error: &dyn std::fmt::Display| Failure::Uncheckable(error.to_string());
    let medium = MediaFile::open(&path, 0, false).map_err(|error| match error {
        runtime::MediaOpenError::InUse(path) => Failure::Uncheckable(format!(
            "{} is in use: stop the rack or node first",
            path.display()
        )),
        error => cannot(&error),
    })?;
    let bar = bar(&path, shows_progress);
    let report = flash::verify(&medium, PAGE_BYTES, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    match report {
        Ok(report) => Ok(finding(path, &medium, &report)),
        Err(OpenError::NotFormatted) => bail!(Failure::Uncheckable(format!(
            "{}: not a Switchyard medium, or both superblocks are damaged: replace it and let the volumes' other \
             copies serve",
            path.display()
        ))),
        Err(error) => bail!(Failure::Uncheckable(format!("{}: {error}", path.display()))),
    }
}

fn bar(path: &Path, shows: bool) -> ProgressBar {
    if !shows {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{msg} [{bar:40}] {percent}% {eta} left").expect("a valid template");
    ProgressBar::new(0)
        .with_style(style)
        .with_message(path.display().to_string())
}

fn finding(path: PathBuf, medium: &MediaFile, report: &VerifyReport) -> Finding {
    Finding {
        summary: format!(
            "{}, {} vSSDs, {} live pages checked",
            Size(medium.capacity_bytes()),
            report.vssds,
            report.live_pages
        ),
        path,
        problems: report.problems.iter().map(problem).collect(),
    }
}

fn problem(problem: &Problem) -> Value {
    json!({
        "what": problem.what,
        "vssd": problem.place.vssd.map(|vssd| vssd.0),
        "lpn": problem.place.lpn.map(|lpn| lpn.0),
        "ppn": problem.place.ppn,
        "offset": problem.place.offset,
        "remedy": problem.remedy,
    })
}

fn print_finding(finding: &Finding) {
    let verdict = match finding.problems.len() {
        0 => "clean".to_owned(),
        count => format!("{count} problems"),
    };
    println!("{}: {verdict} ({})", finding.path.display(), finding.summary);
    for problem in &finding.problems {
        let mut place = Vec::new();
        for key in ["vssd", "lpn", "ppn", "offset"] {
            if let Some(value) = problem.get(key).and_then(Value::as_u64) {
                place.push(format!("{key} {value}"));
            }
        }
        let text = |key: &str| problem.get(key).and_then(Value::as_str).unwrap_or_default();
        println!("  {}: {} — {}", place.join(", "), text("what"), text("remedy"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{USAGE, code_of};

    #[test]
    fn what_is_not_a_rack_cannot_be_checked() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().to_owned(), dir.path().join("none")] {
            assert_eq!(code_of(&files(&path).unwrap_err()), USAGE);
        }
        let zeros = dir.path().join("zeros.img");
        std::fs::write(&zeros, vec![0; 1 << 20]).unwrap();
        let error = check_medium(zeros, false).err().unwrap();
        assert_eq!(code_of(&error), USAGE);
    }

    #[test]
    fn a_damaged_registry_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(registry::FILE_NAME);
        std::fs::write(&path, "junk\n").unwrap();
        assert_eq!(files(dir.path()).unwrap(), vec![path.clone()]);
        assert_eq!(check_registry(path).unwrap().problems.len(), 1);
    }
}
