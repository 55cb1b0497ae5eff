//! `switchyard registry`: shows a registry, backs it up, restores it, and makes it again from what the nodes have. The rack may run
//! while it is shown or backed up.

use crate::datadir::write_durably;
use crate::failure::Failure;
use crate::inventory;
use crate::registry::{Place, emit, parse};
use crate::role::gateway::parse_node;
use anyhow::{Context, bail};
use base::limits::PAGE_BYTES;
use base::{Addr, NodeId, VssdId};
use clap::{Args, Subcommand};
use rack::rebuild::{Found, Terms, VOLUMES_SKIPPED, VSSDS_SKIPPED, rebuild};
use rack::registry::Snapshot;
use std::path::{Path, PathBuf};

/// `switchyard registry`.
#[derive(Args)]
pub struct RecordsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct At {
    /// A rack's directory, a directory that gateways share, or etcd://HOST:PORT,…[/PREFIX]
    #[arg(long, value_name = "DIR|URL")]
    registry: Place,
}

#[derive(Subcommand)]
enum Command {
    /// Show the records as JSON
    #[command(after_help = "Example:\n  switchyard registry show --registry rack-data")]
    Show {
        #[command(flatten)]
        at: At,
    },
    /// Write the records into a file; the rack may run meanwhile
    #[command(after_help = "An older backup in FILE is replaced.\n\n\
        Example:\n  switchyard registry backup --registry etcd://10.0.0.21:2379,10.0.0.22:2379/rack1 rack1.registry")]
    Backup {
        #[command(flatten)]
        at: At,
        /// The backup
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Put the records of a backup in the place of those that there are
    #[command(
        after_help = "Stop every gateway of the rack first. Volumes that were made since the backup are lost; those that were \
        deleted, moved or healed since may be `failed`.\n\n\
        Example:\n  switchyard registry restore --registry rack-data rack1.registry"
    )]
    Restore {
        #[command(flatten)]
        at: At,
        /// The backup
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Restore although the records name a gateway that leads: it was killed, and is not running
        #[arg(long)]
        force: bool,
    },
    /// Let a part of a volume go on with a copy that was expelled, where all its members are lost for ever
    #[command(
        after_help = "What was written since the copy was expelled is LOST, also what was flushed. Stop every gateway of the rack \
        first. Without --accept-loss the command says what it would do, and writes nothing.\n\n\
        Example:\n  switchyard registry force-copy 7 --registry rack-data --accept-loss"
    )]
    ForceCopy {
        /// The copy: an expelled vSSD of `switchyard registry show`
        #[arg(value_name = "VSSD")]
        vssd: u32,
        #[command(flatten)]
        at: At,
        /// Give up what only the other copies hold
        #[arg(long)]
        accept_loss: bool,
        /// The vSSD is a member, and its medium an image of the past that is to be taken as it is
        #[arg(long)]
        restored: bool,
        /// Do it although the records name a gateway that leads: it was killed, and is not running
        #[arg(long)]
        force: bool,
    },
    /// Make records that were lost again from what the nodes have
    #[command(
        after_help = "Stop every gateway of the rack first. Name all nodes, and have them and a ToR run. What is missing or \
        contradicts is told, and nothing is written then.\n\n\
        Example:\n  switchyard registry rebuild --node 1=10.0.0.11:8888 --node 2=10.0.0.12:8888 --registry rack-data"
    )]
    Rebuild(Rebuild),
}

#[derive(Args)]
struct Rebuild {
    /// A node's number and address; repeat it for each node of the rack
    #[arg(long = "node", value_name = "N=IP:PORT", required = true, value_parser = parse_node)]
    nodes: Vec<(NodeId, Addr)>,
    #[command(flatten)]
    target: Target,
    /// Go on without copies that are missing, where another one is there; the command says what that may lose
    #[arg(long)]
    without_missing: bool,
    /// Give up what only missing copies may hold
    #[arg(long, requires = "without_missing")]
    accept_loss: bool,
    /// Leave this volume out; its copies stay on the nodes
    #[arg(long = "leave-out", value_name = "VOLUME")]
    left_out: Vec<String>,
    /// Put the records in the place of those that there are, which are LOST
    #[arg(long, requires = "registry")]
    replace: bool,
    /// Do it although the records name a gateway that leads: it was killed, and is not running
    #[arg(long, requires = "replace")]
    force: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// A directory, or etcd://HOST:PORT,…[/PREFIX], that has no records
    #[arg(long, value_name = "DIR|URL")]
    registry: Option<Place>,
    /// Write a backup instead, for `switchyard registry restore`
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    /// Write nothing: show the records as JSON
    #[arg(long)]
    dry_run: bool,
}

/// Carries it out.
pub fn run(args: RecordsArgs) -> anyhow::Result<()> {
    match args.command {
        Command::Show { at } => {
            println!("{}", serde_json::to_string_pretty(&at.registry.load()?)?);
            Ok(())
        }
        Command::Backup { at, file } => backup(&at.registry, &file),
        Command::Restore { at, file, force } => restore(&at.registry, &file, force),
        Command::ForceCopy {
            vssd,
            at,
            accept_loss,
            restored,
            force,
        } => force_copy(&at.registry, (VssdId(vssd), restored), accept_loss, force),
        Command::Rebuild(args) => {
            let nodes = args.nodes.iter().map(|&(node, addr)| inventory::ask(node, addr));
            made_again(&nodes.collect::<Result<Vec<_>, _>>()?, args)
        }
    }
}

/// Writes, or shows, the records that the nodes amount to.
fn made_again(nodes: &[Found], args: Rebuild) -> anyhow::Result<()> {
    let terms = Terms {
        without_missing: args.without_missing,
        left_out: args.left_out.clone(),
    };
    let snapshot = match rebuild(nodes, &terms) {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            problems.iter().for_each(|problem| println!("{problem}"));
            bail!(Failure::Problems(problems.len()));
        }
    };
    let doubts: Vec<String> = doubts(&snapshot, nodes).collect();
    doubts.iter().for_each(|doubt| println!("{doubt}"));
    if !(doubts.is_empty() || args.accept_loss || args.target.dry_run) {
        println!(
            "A copy that was expelled does not know of it. If one of those that are left was, what was written since is lost, also what was \
             flushed."
        );
        bail!(Failure::Usage(
            "nothing is written: name the nodes of the missing copies, or say --accept-loss to go on without them".into()
        ));
    }
    write(snapshot, args)
}

/// Sets that go on with copies that may be of before, as another member is missing.
fn doubts(snapshot: &Snapshot, nodes: &[Found]) -> impl Iterator<Item = String> {
    let is_found = |vssd: u32| {
        nodes
            .iter()
            .flat_map(|node| &node.vssds)
            .any(|listed| listed.vssd.0 == vssd)
    };
    let volumes = snapshot.volumes.iter();
    let sets = volumes.flat_map(|volume| {
        volume
            .sets
            .iter()
            .enumerate()
            .map(move |(part, set)| (volume, part, set))
    });
    sets.filter_map(move |(volume, part, set)| {
        let lost = set.expelling.iter().flat_map(|expelling| &expelling.vssds);
        let missing: Vec<String> = lost
            .filter(|vssd| !is_found(**vssd))
            .map(u32::to_string)
            .collect();
        let left: Vec<String> = set
            .replicas
            .iter()
            .map(|left| format!("{} on node {}", left.vssd, left.node))
            .collect();
        let (name, left, lost) = (&volume.name, left.join(", "), missing.join(", "));
        (!missing.is_empty()).then(|| {
            format!("volume `{name}`, part {part}: vSSD {lost} is missing, and vSSD {left} goes on.")
        })
    })
}

fn write(snapshot: Snapshot, args: Rebuild) -> anyhow::Result<()> {
    if let Some(file) = args.target.backup {
        if file.exists() {
            bail!(Failure::Usage(format!(
                "{} is there already: name another file",
                file.display()
            )));
        }
        write_durably(&file, &emit(&snapshot)).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{}: {}", file.display(), summary(&snapshot));
    } else if let Some(place) = args.target.registry {
        if !args.replace && place.exists()? {
            bail!(Failure::InUse(format!(
                "{place} has records: keep them, name another place, or say --replace to lose them"
            )));
        }
        place.create()?;
        place.restore(|stored| {
            refuse_lead(stored.as_ref(), args.force)?;
            Ok(replaced(snapshot, stored.as_ref()))
        })?;
        println!("{place}: {}", summary(&place.load()?));
    } else {
        println!("{}", serde_json::to_string_pretty(&snapshot)?);
    }
    Ok(())
}

/// The records that were made again, in the place of those that are stored.
fn replaced(snapshot: Snapshot, stored: Option<&Snapshot>) -> Snapshot {
    let known = stored.filter(|stored| stored.rack == snapshot.rack);
    let number = |of: fn(&Snapshot) -> u32| known.map_or(0, of).max(of(&snapshot));
    Snapshot {
        epoch: stored.map_or(0, |stored| stored.epoch).max(snapshot.epoch) + 1,
        next_vssd: number(|records| records.next_vssd),
        next_volume: number(|records| records.next_volume),
        last_session: number(Snapshot::session_max),
        ..snapshot
    }
}

fn backup(place: &Place, file: &Path) -> anyhow::Result<()> {
    let snapshot = place.load()?;
    write_durably(file, &emit(&snapshot)).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}: {}", file.display(), summary(&snapshot));
    Ok(())
}

fn restore(place: &Place, file: &Path, force: bool) -> anyhow::Result<()> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let backup = parse(&bytes).with_context(|| file.display().to_string())?;
    place.restore(|stored| {
        refuse_lead(stored.as_ref(), force)?;
        restored(backup, stored.as_ref())
    })?;
    println!("{place}: {}", summary(&place.load()?));
    println!(
        "Have all nodes run before you start the gateways: a copy that was expelled since this backup does not know of it."
    );
    Ok(())
}

/// Refuses records of which a gateway may have others in memory.
fn refuse_lead(stored: Option<&Snapshot>, force: bool) -> anyhow::Result<()> {
    let lead = stored.and_then(Snapshot::any_lead);
    if let Some(lead) = lead.filter(|_| !force) {
        bail!(Failure::InUse(format!(
            "the gateway {} leads, or was killed: stop every gateway first; if none runs, say so with --force",
            lead.gateway
        )));
    }
    Ok(())
}

/// Lets a set go on with an expelled copy, or says what that would lose.
fn force_copy(
    place: &Place,
    (vssd, restored): (VssdId, bool),
    accept_loss: bool,
    force: bool,
) -> anyhow::Result<()> {
    let forced = place.load()?.force_copy(vssd, restored)?;
    let (first, pages) = forced.pages;
    let given_up: Vec<String> = (forced.given_up.iter())
        .map(|(vssd, node)| format!("vSSD {} on node {}", vssd.0, node.0))
        .collect();
    let given_up = match given_up.is_empty() {
        true => "none".into(),
        false => given_up.join(", "),
    };
    println!(
        "volume `{}`, bytes {} to {}: the copy on node {} takes the place of {given_up}.",
        forced.volume,
        first * PAGE_BYTES as u64,
        (first + u64::from(pages)) * PAGE_BYTES as u64,
        forced.node.0,
    );
    println!("What was written there since the copy was expelled is lost, also what was flushed.");
    if forced.is_mixed {
        println!("The copy was catching up: some pages are newer than others.");
    }
    if !accept_loss {
        bail!(Failure::Usage(
            "nothing is written: say --accept-loss to do it".into()
        ));
    }
    place.restore(|stored| {
        refuse_lead(stored.as_ref(), force)?;
        let mut next = stored.context("the registry has no records")?;
        if next.force_copy(vssd, restored)? != forced {
            bail!(Failure::InUse(
                "the records have changed meanwhile: look again".into()
            ));
        }
        next.epoch += 1;
        next.give_back_leads();
        Ok(next)
    })
}

/// The records that take the place of those that are stored, if these could be read.
fn restored(backup: Snapshot, stored: Option<&Snapshot>) -> anyhow::Result<Snapshot> {
    let (next_vssd, next_volume, epoch) = match stored {
        Some(stored) if !stored.volumes.is_empty() && stored.rack != backup.rack => {
            bail!(Failure::Usage(format!(
                "the backup is of the rack {}, and this is the registry of the rack {}, which has volumes",
                backup.rack, stored.rack
            )));
        }
        Some(stored) if stored.rack == backup.rack => (
            stored.next_vssd.max(backup.next_vssd),
            stored.next_volume.max(backup.next_volume),
            stored.epoch.max(backup.epoch),
        ),
        other => (
            backup.next_vssd.saturating_add(VSSDS_SKIPPED),
            backup.next_volume.saturating_add(VOLUMES_SKIPPED),
            other.map_or(0, |stored| stored.epoch).max(backup.epoch),
        ),
    };
    let mut next = Snapshot {
        epoch: epoch + 1,
        next_vssd,
        next_volume,
        ..backup
    };
    // The level never falls, whatever the backup is of.
    let level = stored.filter(|stored| stored.rack == next.rack);
    next.level = next.level.max(level.map_or(0, |stored| stored.level));
    // Nobody leads now. Sessions that were given since are not given again.
    next.give_back_leads();
    let last = stored.map_or(0, Snapshot::session_max);
    next.last_session = last.max(next.session_max());
    Ok(next)
}

fn summary(snapshot: &Snapshot) -> String {
    format!(
        "{} nodes, {} volumes, epoch {}",
        snapshot.nodes.len(),
        snapshot.volumes.len(),
        snapshot.epoch
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{IN_USE, code_of};
    use crate::registry::{FILE_NAME, FileRegistry};
    use rack::registry::{LeadRecord, Registry};
    use tempfile::TempDir;

    /// A rack's directory, and a backup of its registry.
    fn paths(dir: &TempDir) -> (PathBuf, PathBuf) {
        (dir.path().join("rack"), dir.path().join("backup"))
    }

    /// A new registry that was backed up.
    fn backed_up() -> (TempDir, FileRegistry) {
        let dir = tempfile::tempdir().unwrap();
        let (home, file) = paths(&dir);
        std::fs::create_dir(&home).unwrap();
        let registry = FileRegistry::open(&home).unwrap();
        backup(&Place::Dir(home), &file).unwrap();
        (dir, registry)
    }

    #[test]
    fn what_was_backed_up_is_restored_and_no_number_is_given_out_again() {
        let (dir, mut registry) = backed_up();
        let (home, file) = paths(&dir);
        let place = Place::Dir(home.clone());
        let first = registry.load().unwrap();
        let later = Snapshot {
            next_vssd: 7,
            next_volume: 3,
            boots: [(1, 1)].into(),
            ..first.clone()
        };
        registry.store(&later).unwrap();
        restore(&place, &file, false).unwrap();
        let now = registry.load().unwrap();
        assert_eq!((now.next_vssd, now.next_volume, now.boots.len()), (7, 3, 0));
        assert!(now.epoch > later.epoch + 1, "a store of before conflicts");
        // Damaged, and another directory without any.
        std::fs::write(home.join(FILE_NAME), "junk").unwrap();
        let empty = Place::Dir(dir.path().join("other"));
        for place in [place, empty] {
            restore(&place, &file, false).unwrap();
            let now = place.load().unwrap();
            assert_eq!(
                (now.rack, now.next_vssd),
                (first.rack, first.next_vssd + VSSDS_SKIPPED)
            );
        }
    }

    /// bug: records that named a gateway that was killed could not be made again in their place.
    #[test]
    fn records_are_made_again_in_the_place_of_those_of_a_killed_gateway_if_one_says_so() {
        let (dir, mut registry) = backed_up();
        let (home, _) = paths(&dir);
        let mut led = registry.load().unwrap();
        led.lead = Some(LeadRecord::new(base::Addr::new([10, 0, 0, 1], 8888), 7));
        registry.store(&led).unwrap();
        let rebuild = |force| {
            let args = Rebuild {
                nodes: Vec::new(),
                target: Target {
                    registry: Some(Place::Dir(home.clone())),
                    backup: None,
                    dry_run: false,
                },
                without_missing: false,
                accept_loss: false,
                left_out: Vec::new(),
                replace: true,
                force,
            };
            // Of nodes that have nothing but the rack's id.
            write(
                Snapshot {
                    rack: led.rack,
                    ..Snapshot::default()
                },
                args,
            )
        };
        let refusal = rebuild(false).unwrap_err();
        assert_eq!(code_of(&refusal), IN_USE);
        assert!(refusal.to_string().contains("say so with --force"), "{refusal}");
        assert_eq!(registry.load().unwrap().lead, led.lead);
        rebuild(true).unwrap();
        let now = registry.load().unwrap();
        assert_eq!(
            (now.lead, now.last_session),
            (None, 7),
            "its session is not given again"
        );
        assert!(now.epoch > led.epoch + 1, "a store of before conflicts");
    }

    #[test]
    fn a_registry_is_not_restored_while_a_gateway_leads_or_with_another_racks_backup() {
        let (dir, mut registry) = backed_up();
        let (home, file) = paths(&dir);
        let place = Place::Dir(home);
        let mut led = registry.load().unwrap();
        led.lead = Some(LeadRecord {
            to: String::new(),
            gateway: "10.0.0.1:8888".into(),
            session: 1,
        });
        registry.store(&led).unwrap();
        assert_eq!(code_of(&restore(&place, &file, false).unwrap_err()), IN_USE);
        backup(&place, &file).unwrap();
        restore(&place, &file, true).unwrap();
        restore(&place, &file, false).unwrap();
        std::fs::write(&file, "junk").unwrap();
        assert!(restore(&place, &file, true).is_err());
    }
}
