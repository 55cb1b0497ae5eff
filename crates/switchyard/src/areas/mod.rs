//! `switchyard areas`: storage areas of many programs on one medium, out of their data path.
//!
//! The server (`keeper`, `server`) says who has which area and hands out descriptors; what programs do with these it does not see,
//! and it may be killed and started again at any time.

mod keeper;
mod server;

use crate::failure::Failure;
use crate::foreign;
use crate::launch;
use crate::size::Size;
use anyhow::{Context, bail};
use area::catalog::{CatalogClient, CatalogMedia, CatalogMediaError, ClientError, WorkError, default_socket};
use base::Device;
use clap::{Args, Subcommand};
use keeper::{Keeper, Quotas, Shares};
use runtime::{MediaFile, MediaOpenError};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::catalog::protocol::{AreaEntry, NewArea, OWN, Rate, Readers, Request};
use store::catalog::{AREA_BYTES_MIN, AreaState, Catalog, CatalogError, TABLE_BYTES, split_name};

/// How often the server looks after its areas.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// The table's file in a directory.
const TABLE: &str = "table";

/// `switchyard areas`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  switchyard areas serve --media /srv/areas --size 64GiB --quota 4GiB\n  \
    switchyard areas create db --size 1GiB\n  switchyard areas export db-public --area db\n  \
    switchyard areas list --json\n\nNAME is an area of yours, UID/NAME an area of another user.\n\nPrograms open areas by name with the library: Area::open_in_catalog (Rust), \
    swy_area_open_in_catalog (C), Area.in_catalog (Python)."
)]
pub struct AreasArgs {
    /// Socket of the server [default: $SWITCHYARD_AREAS; or /run/switchyard/areas.sock for root,
    /// $XDG_RUNTIME_DIR/switchyard-areas.sock for other users]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: AreasCommand,
}

/// Commands for areas.
#[derive(Subcommand)]
enum AreasCommand {
    /// Serve areas until Ctrl-C
    Serve(ServeArgs),
    /// List areas and exports
    List,
    /// Create an area
    Create {
        /// Name of the area: letters, digits, `-`, `_`, `.`
        name: String,
        /// Size of the area, in whole MiB, at least 8
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// Rights of others to read and write the area, as for files
        #[arg(long, value_name = "OCTAL", default_value = "600", value_parser = parse_mode)]
        mode: u16,
        /// Owner of the area [default: you; another owner needs root]
        #[arg(long, value_name = "UID")]
        owner: Option<u32>,
        /// Group of the area [default: yours; another group needs root]
        #[arg(long, value_name = "GID")]
        group: Option<u32>,
        #[command(flatten)]
        rate: RateArgs,
    },
    /// Grow an area, which its program sees at the next open, or change its rate, which holds at once
    Resize {
        /// Name of the area
        name: String,
        /// New size of the area
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        #[command(flatten)]
        rate: RateArgs,
    },
    /// Give an area a global name, by which others read the area or reach its owner
    Export {
        /// The global name
        name: String,
        /// The area
        #[arg(long, value_name = "NAME")]
        area: String,
        /// Readers of the export: all, uid:N or gid:N
        #[arg(long, value_name = "WHOM", default_value = "all", value_parser = parse_readers)]
        to: Readers,
        /// Socket where the owner answers; without it others get the area itself, for reading
        #[arg(long, value_name = "PATH")]
        redirect: Option<String>,
    },
    /// Take a global name back; programs that opened it keep their descriptor
    Withdraw {
        /// The global name
        name: String,
    },
    /// Delete an area and its data
    Delete {
        /// Name of the area
        name: String,
        /// Delete the area even if a program has it open
        #[arg(long)]
        force: bool,
    },
    /// Check the table and the areas of a catalog without a running server; changes nothing
    Verify {
        /// Directory or block device of the catalog
        media: PathBuf,
    },
}

/// How fast an area may be read and written.
#[derive(Args)]
struct RateArgs {
    /// Operations a second, of reads and of writes each; 0 for no limit [default: the rest of the user's quota, or no limit]
    #[arg(long, value_name = "N")]
    iops: Option<u32>,
    /// Bytes a second, of reads and of writes each; 0 for no limit [default: the rest of the user's quota, or no limit]
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Size>,
}

impl RateArgs {
    /// What is named, and of `before` what is not; `None` if nothing is.
    fn over(&self, before: Rate) -> Option<Rate> {
        (self.iops.is_some() || self.bandwidth.is_some()).then(|| Rate {
            operations: self.iops.unwrap_or(before.operations),
            bytes: self.bandwidth.map_or(before.bytes, |size| size.0),
        })
    }
}

#[derive(Args)]
struct ServeArgs {
    /// A directory (the server creates a missing one) or a block device (root)
    #[arg(long, value_name = "PATH")]
    media: PathBuf,
    /// Bytes for all areas of a directory; a new directory needs it [default: as before]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Make a block device that holds nothing a catalog; one that is a catalog is served as it is
    #[arg(long)]
    format: bool,
    /// With --format: make the device a catalog also if it holds this, which is DESTROYED
    #[arg(long, value_name = "NAME", requires = "format")]
    erase: Option<String>,
    /// Hand out loop devices over the files of a directory, so that nobody can extend them (root)
    #[arg(long)]
    strict: bool,
    /// Bytes for a user's areas: UID=SIZE for one user, SIZE for each other user [default: no limit,
    /// also if there was one before]
    #[arg(long, value_name = "[UID=]SIZE", value_parser = parse_quota)]
    quota: Vec<(Option<u32>, u64)>,
    /// Operations a second for a user's areas together, of reads and of writes each: UID=N for one user, N for each
    /// other user (root); 0 for no limit [default: no limit, also if there was one before]
    #[arg(long, value_name = "[UID=]N", value_parser = parse_count_quota)]
    quota_iops: Vec<(Option<u32>, u64)>,
    /// Bytes a second for a user's areas together, of reads and of writes each (root); 0 for no limit
    /// [default: no limit, also if there was one before]
    #[arg(long, value_name = "[UID=]SIZE", value_parser = parse_quota)]
    quota_bandwidth: Vec<(Option<u32>, u64)>,
}

fn parse_mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8).map_err(|_| format!("`{text}` is not an octal mode: write for example 640"))
}

fn parse_readers(text: &str) -> Result<Readers, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number"));
    match text.split_once(':') {
        None if text == "all" => Ok(Readers::All),
        Some(("uid", user)) => number(user).map(Readers::User),
        Some(("gid", group)) => number(group).map(Readers::Group),
        _ => Err(format!("`{text}` is not a reader: choose all, uid:N or gid:N")),
    }
}

/// The value after the user, if the text names a user.
fn of_user(text: &str) -> Result<(Option<u32>, &str), String> {
    let Some((user, what)) = text.split_once('=') else {
        return Ok((None, text));
    };
    let user = user
        .parse()
        .map_err(|_| format!("`{user}` is not the number of a user"))?;
    Ok((Some(user), what))
}

fn parse_quota(text: &str) -> Result<(Option<u32>, u64), String> {
    let (user, size) = of_user(text)?;
    let size = size.parse::<Size>().map_err(|error| error.to_string())?;
    Ok((user, size.0))
}

fn parse_count_quota(text: &str) -> Result<(Option<u32>, u64), String> {
    let (user, count) = of_user(text)?;
    match count.parse::<u32>() {
        Ok(count) => Ok((user, count.into())),
        Err(_) => Err(format!("`{count}` is not a number of operations")),
    }
}

/// Does it.
pub fn run(args: AreasArgs) -> anyhow::Result<()> {
    let is_server = matches!(args.command, AreasCommand::Serve(_));
    let socket = args.socket.unwrap_or_else(|| default_socket(is_server));
    let change = |request: Request| -> anyhow::Result<()> {
        connect(&socket)?.change(&request)?;
        if args.json {
            println!("{}", json!({ "done": true }));
        }
        Ok(())
    };
    match args.command {
        AreasCommand::Serve(serving) => serve(&socket, &serving, args.json),
        AreasCommand::List => list(&socket, args.json),
        AreasCommand::Verify { media } => verify(&media, args.json),
        AreasCommand::Create {
            name,
            size,
            mode,
            owner,
            group,
            rate,
        } => change(Request::Create(NewArea {
            name,
            bytes: size.0,
            owner: owner.unwrap_or(OWN),
            group: group.unwrap_or(OWN),
            mode,
            rate: rate.over(Rate::UNLIMITED).unwrap_or_default(),
        })),
        AreasCommand::Resize { name, size, rate } => resize(&socket, name, size, &rate, args.json),
        AreasCommand::Export {
            name,
            area,
            to,
            redirect,
        } => change(Request::Export {
            name,
            area,
            readers: to,
            path: redirect.unwrap_or_default(),
        }),
        AreasCommand::Withdraw { name } => change(Request::Withdraw { name }),
        AreasCommand::Delete { name, force } => change(Request::Delete { name, force }),
    }
}

fn connect(socket: &Path) -> anyhow::Result<CatalogClient> {
    CatalogClient::connect(socket).map_err(|error| match error {
        ClientError::NoServer { .. } => Failure::NoAreas(error.to_string()).into(),
        error => error.into(),
    })
}

/// Another rate first, as more room takes its time; the answer is for both.
fn resize(
    socket: &Path,
    name: String,
    size: Option<Size>,
    rate: &RateArgs,
    as_json: bool,
) -> anyhow::Result<()> {
    let client = connect(socket)?;
    let areas = client.areas()?;
    let own = rustix::process::geteuid().as_raw();
    let is_named = |area: &&AreaEntry| {
        split_name(&name).is_some_and(|(owner, name)| area.owner == owner.unwrap_or(own) && area.name == name)
    };
    let before = areas.iter().find(is_named);
    let rate = rate.over(before.map_or(Rate::UNLIMITED, |area| area.rate));
    if rate.is_none() && size.is_none() {
        bail!(Failure::Usage(
            "name the change: --size, --iops or --bandwidth".into()
        ));
    }
    if let Some(rate) = rate {
        client.change(&Request::Limit {
            name: name.clone(),
            rate,
        })?;
    }
    if let Some(Size(bytes)) = size {
        client.change(&Request::Resize { name, bytes })?;
    }
    if as_json {
        println!("{}", json!({ "done": true }));
    }
    Ok(())
}

fn refused(error: CatalogMediaError) -> anyhow::Error {
    match error {
        CatalogMediaError::InUse(_) | CatalogMediaError::Table(MediaOpenError::InUse(_)) => {
            Failure::InUse(error.to_string()).into()
        }
        CatalogMediaError::Unfit { .. } => Failure::Usage(error.to_string()).into(),
        error => error.into(),
    }
}

fn serve(socket: &Path, args: &ServeArgs, as_json: bool) -> anyhow::Result<()> {
    let signals = launch::signals()?;
    let (media, mut table) = CatalogMedia::open(&args.media, args.strict).map_err(refused)?;
    let catalog = load(&media, &mut table, args)?;
    let server = rustix::process::geteuid().as_raw();
    let shares = |named: &[(Option<u32>, u64)]| Shares {
        others: named
            .iter()
            .rev()
            .find(|(user, _)| user.is_none())
            .map(|(_, share)| *share),
        users: named
            .iter()
            .filter_map(|(user, share)| Some(((*user)?, *share)))
            .collect(),
    };
    let quotas = Quotas {
        bytes: shares(&args.quota),
        operations: shares(&args.quota_iops),
        bandwidth: shares(&args.quota_bandwidth),
        server,
    };
    let has_rates = args.quota_iops.len() + args.quota_bandwidth.len() > 0;
    if has_rates && !media.can_limit() {
        bail!("{}", WorkError::NoRates);
    }
    let told = quotas.words();
    let listener = server::listen(socket)?;
    let (keeper, cut) = Keeper::start(media, table, catalog, quotas);
    let keeper = Arc::new(keeper);
    let (used, capacity, areas) = keeper.usage();
    let accepting = Arc::clone(&keeper);
    std::thread::Builder::new()
        .name("accept".into())
        .spawn(move || server::accept(&listener, &accepting, server))?;
    signals.serving();
    if as_json {
        let line = json!({
            "socket": socket, "capacity_bytes": capacity, "used_bytes": used, "areas": areas, "changes_cut": cut,
            "pid": std::process::id(), "quotas": told,
        });
        println!("{line}");
    } else {
        println!(
            "areas ready: {areas} areas, {} of {} in use, socket {}",
            Size(used),
            Size(capacity),
            socket.display()
        );
        println!("{told}");
    }
    crate::out::flush();
    while !signals.wait(TEND_EVERY)? {
        keeper.tend();
    }
    let _stopped = keeper.stop();
    std::fs::remove_file(socket).context("cannot change the mode of the socket's file")
}

/// The table of the medium, or a new one where there may be one.
fn load(media: &CatalogMedia, table: &mut MediaFile, args: &ServeArgs) -> anyhow::Result<Catalog> {
    let path = args.media.display();
    let size = match (media.is_placed(), args.size) {
        (true, Some(_)) => bail!(Failure::Usage(
            "--size is for directories: the catalog takes the whole block device".into()
        )),
        (true, None) => Some(table.capacity_bytes()),
        (false, Some(size)) if size.0 < AREA_BYTES_MIN => bail!(Failure::Usage(format!(
            "--size takes at least {} (one area), not {size}",
            Size(AREA_BYTES_MIN)
        ))),
        (false, size) => size.map(|size| size.0),
    };
    let mut catalog = match Catalog::load(table) {
        Ok((catalog, _)) if catalog.is_placed() == media.is_placed() && args.erase.is_none() => catalog,
        Ok((catalog, _)) if catalog.is_placed() != media.is_placed() => {
            bail!("{path} holds the table of another medium")
        }
        Err(CatalogError::NotACatalog) if media.is_placed() && !args.format => {
            bail!(Failure::Usage(format!(
                "{path} is not a catalog of areas: --format makes it a catalog"
            )))
        }
        Ok(_) | Err(CatalogError::NotACatalog) => format(media, table, size, args)?,
        Err(error) => bail!("{path}: {error}"),
    };
    let end = size.unwrap_or(catalog.end_bytes());
    if end != catalog.end_bytes() {
        if !catalog.set_end(end) {
            bail!(Failure::Usage(format!(
                "{path}: its areas need more than {}",
                Size(end)
            )));
        }
        catalog.save(table)?;
    }
    Ok(catalog)
}

fn format(
    media: &CatalogMedia,
    table: &mut MediaFile,
    size: Option<u64>,
    args: &ServeArgs,
) -> anyhow::Result<Catalog> {
    let path = args.media.display();
    if args.format && !media.is_placed() {
        bail!(Failure::Usage(
            "--format is for block devices: name a new directory instead".into()
        ));
    }
    if !media.is_unclaimed() {
        bail!(Failure::InUse(format!(
            "{path}: it is mounted, or areas of it are open"
        )));
    }
    let Some(size) = size else {
        bail!(Failure::Usage(format!(
            "{path} is a new catalog: name its size with --size"
        )));
    };
    if media.is_placed() {
        foreign::permit(&args.media, table, args.erase.as_deref())?;
    }
    let uuid = uuid::Uuid::new_v4().into_bytes();
    let mut catalog = Catalog::new(uuid, media.is_placed(), size);
    catalog.format(table)?;
    Ok(catalog)
}

/// A line of an area in a list: under its plain name if it is this user's.
fn print_area(area: &AreaEntry, state: &str) {
    let own = rustix::process::geteuid().as_raw();
    let owner = match area.owner == own {
        true => String::new(),
        false => format!("{}/", area.owner),
    };
    let rate = |rate: Rate| {
        let operations = (rate.operations > 0).then(|| format!("  {} a second", rate.operations));
        let bytes = (rate.bytes > 0).then(|| format!("  {}/s", Size(rate.bytes)));
        operations.unwrap_or_default() + &bytes.unwrap_or_default()
    };
    println!(
        "{owner}{}  {}  owner {}:{}  mode {:03o}  {state}{}{}",
        area.name,
        Size(area.bytes),
        area.owner,
        area.group,
        area.mode,
        rate(area.rate),
        if area.is_open { "  open" } else { "" }
    );
}

fn list(socket: &Path, as_json: bool) -> anyhow::Result<()> {
    let client = connect(socket)?;
    let (areas, exports) = (client.areas()?, client.exports()?);
    let state = |state| match state {
        1 => "making",
        2 => "ready",
        3 => "growing",
        _ => "leaving",
    };
    let whom = |readers| match readers {
        Readers::All => "all".to_owned(),
        Readers::User(user) => format!("uid:{user}"),
        Readers::Group(group) => format!("gid:{group}"),
    };
    if as_json {
        let areas: Vec<_> = areas
            .iter()
            .map(|area| {
                json!({
                    "number": area.number, "name": area.name, "size_bytes": area.bytes, "owner": area.owner,
                    "group": area.group, "mode": format!("{:03o}", area.mode), "state": state(area.state),
                    "open": area.is_open, "iops": area.rate.operations, "bandwidth_bytes": area.rate.bytes,
                })
            })
            .collect();
        let exports: Vec<_> = exports
            .iter()
            .map(
                |it| json!({ "name": it.name, "area": it.area, "to": whom(it.readers), "redirect": it.path }),
            )
            .collect();
        println!("{}", json!({ "areas": areas, "exports": exports }));
        return Ok(());
    }
    for area in &areas {
        print_area(area, state(area.state));
    }
    for export in &exports {
        let redirect = if export.path.is_empty() {
            String::new()
        } else {
            format!("  at {}", export.path)
        };
        println!(
            "{} -> {}  for {}{redirect}",
            export.name,
            export.area,
            whom(export.readers)
        );
    }
    Ok(())
}

/// Checks a catalog offline.
fn verify(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let is_directory = path.is_dir();
    let file = if is_directory {
        path.join(TABLE)
    } else {
        path.to_owned()
    };
    let table = MediaFile::open(&file, 0, false).map_err(|error| match error {
        MediaOpenError::InUse(_) => Failure::InUse(error.to_string()),
        error => Failure::Uncheckable(error.to_string()),
    })?;
    let (catalog, behind) = Catalog::read(&table).map_err(|error| match error {
        CatalogError::NotACatalog | CatalogError::OtherVersion(_) | CatalogError::Medium(_) => {
            anyhow::Error::from(Failure::Uncheckable(format!("{}: {error}", path.display())))
        }
        error => anyhow::anyhow!("{}: {error}", path.display()),
    })?;
    let problems = if is_directory {
        files_of(&catalog, path)?
    } else {
        let is_inside = catalog.end_bytes() <= table.capacity_bytes();
        (!is_inside)
            .then(|| "the device is smaller than the catalog".to_owned())
            .into_iter()
            .collect()
    };
    let under_way = catalog.unfinished().len();
    if as_json {
        println!(
            "{}",
            json!({
                "sound": problems.is_empty(), "problems": problems, "generation": catalog.generation(),
                "areas": catalog.areas().count(), "used_bytes": catalog.used_bytes(), "capacity_bytes": catalog.capacity_bytes(),
                "changes_cut": under_way, "copies_behind": behind,
            })
        );
    } else {
        println!(
            "{}: table {}, {} areas, {} of {}",
            path.display(),
            catalog.generation(),
            catalog.areas().count(),
            Size(catalog.used_bytes()),
            Size(catalog.capacity_bytes())
        );
        if under_way > 0 {
            println!("  {under_way} changes were cut; serving it undoes or completes them");
        }
        if behind > 0 {
            println!("  one copy of the table is damaged or older; serving it makes it good");
        }
        for problem in &problems {
            println!("  {problem}");
        }
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::Problems(count).into()),
    }
}

/// Problems of the files of a directory.
fn files_of(catalog: &Catalog, dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let file_of = |id: u64| dir.join(format!("area-{id}"));
    for (id, area) in catalog.areas().filter(|(_, area)| area.state == AreaState::Ready) {
        match file_of(id.0).metadata() {
            Ok(data) if data.len() == area.extent.bytes => {}
            Ok(data) => problems.push(format!(
                "area {} has {} bytes, not {}",
                area.name,
                data.len(),
                area.extent.bytes
            )),
            Err(error) => problems.push(format!("area {}: {error}", area.name)),
        }
    }
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_known = match name.strip_prefix("area-").map(str::parse::<u64>) {
            Some(Ok(number)) => catalog.area(store::catalog::AreaId(number)).is_some(),
            _ => name == TABLE,
        };
        if !is_known {
            problems.push(format!("the file {name} belongs to no area"));
        }
    }
    Ok(problems)
}

const _: () = assert!(TABLE_BYTES == 2 << 20, "docs/format/areas.md");
