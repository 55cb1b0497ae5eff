//! `switchyard serve`: volumes of this machine, on memory, files or block devices, for many clients at once.

use crate::config;
use crate::control::server::Server;
use crate::datadir;
use crate::events;
use crate::failure::Failure;
use crate::foreign::Consent;
use crate::identity::Machine;
use crate::launch::{self, Says};
use crate::size::Size;
use crate::target::{self, Served};
use anyhow::bail;
use base::VolumeId;
use base::limits::{CHANNELS_MAX, PAGE_BYTES};
use blockswitch::{Class, Policy};
use clap::Args;
use host::target::{ClassRules, Config};
use host::{Disk, DiskConfig, DiskEntry, DiskError};
use runtime::{
    CoreConfig, CoreHandle, ImageOpen, Listen, LocalVolume, MediaOpenError, NvmeTarget, StartError,
    TargetSpec,
};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use wire::nbd::{self, Nbd};
use wire::nvme::{self, Access, Nvme, Subsystem, Target, TargetOptions};

/// `switchyard serve`.
#[derive(Args)]
#[command(
    after_help = "Every --media is a volume, and the --name at the same place is its name. NVMe hosts find the volume as \
    nqn.2026-11.io.switchyard:NAME.\n\n\
    Examples:\n  switchyard serve --media mem:1GiB --name disk --nvme 127.0.0.1:4420 --nbd 127.0.0.1:10809 --cores 0\n  \
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-11.io.switchyard:disk\n  \
    switchyard serve --media /srv/a.img:8GiB --name a --media /dev/sdb --name b --cores 2,3\n  \
    switchyard serve --media vssd:/srv/v.img,size=8GiB,timing=p-ssd --name v"
)]
pub struct ServeArgs {
    /// A volume's medium: mem:SIZE, a file or block device, FILE:SIZE to create a missing file, or a
    /// software-defined SSD, vssd:mem|FILE|DEVICE[,size=SIZE][,timing=none|p-ssd|intel-dc|optane|TOML][,channels=N]
    #[arg(long, value_name = "MEDIUM", required_unless_present = "show_config")]
    pub media: Vec<MediaArg>,
    /// Names of the volumes, in the order of the media [default: disk, disk2, disk3, …]
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// UUID of a volume for NVMe hosts, instead of the medium's own: for a disk that several machines reach, or a copy that
    /// takes the place of its original
    #[arg(long = "uuid", value_name = "NAME=UUID", value_parser = parse_uuid)]
    pub uuids: Vec<(String, Uuid)>,
    /// Address for NBD clients [default: 127.0.0.1:10809 without --nvme, else none]
    #[arg(long, value_name = "IP:PORT")]
    pub nbd: Vec<SocketAddr>,
    /// Address for NVMe/TCP hosts and their discovery
    #[arg(long, value_name = "IP:PORT")]
    pub nvme: Vec<SocketAddr>,
    /// NQN of an NVMe host that may connect; repeat it for several [default: any]
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    pub allow: Vec<String>,
    /// Another discovery service to send hosts to
    #[arg(long, value_name = "IP:PORT")]
    pub referral: Vec<SocketAddr>,
    /// Processors to run on, with a pinned thread on each, such as 0 or 2,3 or 4-7 [default: one unpinned thread]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CpuList>,
    /// Order of requests: switchyard, or a baseline: linux, spdk, spdk-priority, blk-switch
    #[arg(long, value_name = "POLICY", default_value_t = Policy::Switchyard)]
    pub policy: Policy,
    /// Bulk work before a core looks for small requests: less shortens their wait, more raises bulk throughput
    #[arg(long, value_name = "SIZE", default_value = "352KiB")]
    pub slice: Size,
    /// Class of an NVMe host, a volume or a port's clients, instead of a learned class: host:NQN=latency,
    /// NAME=latency, PORT=throughput; if several match, the first in this order counts
    #[arg(long = "class", value_name = "WHOM=CLASS", value_parser = parse_class)]
    pub classes: Vec<(String, Class)>,
    /// Refuse writes, trims and zeroes
    #[arg(long)]
    pub read_only: bool,
    /// Payload memory per core at most
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub pool: Size,
    /// Connections per core; the core closes any more at once
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Requests in flight per connection; a client that sends more waits
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: u16,
    /// Time that an idle core polls after work before it sleeps, in µs
    #[arg(long, value_name = "US", default_value_t = 50)]
    pub spin_us: u64,
    /// Seconds until a medium's unanswered operation is given up and the medium takes no more writes [default: 30]
    #[arg(long, value_name = "S")]
    pub media_timeout_s: Option<u64>,
    /// Address where `switchyard profile --target` reads the time of requests by layer (HTTP, no authentication)
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// Print the settings that decide whose turn it is, and end
    #[arg(long)]
    pub show_config: bool,
    /// Print one JSON line when ready, nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Requests of all connections of a core, each of which has its place from the start.
const REQUESTS_MAX: u32 = 1 << 24;

impl ServeArgs {
    /// What ships, with what the command line says.
    fn target(&self) -> anyhow::Result<Config> {
        let pool_pages = usize::try_from(self.pool.0 / PAGE_BYTES as u64)?;
        if pool_pages < 1024 {
            bail!(Failure::Usage(format!(
                "--pool takes at least 4MiB, not {}",
                self.pool
            )));
        }
        if !(4 << 10..=16 << 20).contains(&self.slice.0) {
            bail!(Failure::Usage(format!(
                "--slice takes 4KiB to 16MiB, not {}",
                self.slice
            )));
        }
        let requests = u32::from(self.connections) * u32::from(self.requests);
        if requests > REQUESTS_MAX {
            bail!(Failure::Usage(format!(
                "--connections {} with --requests {} are {requests} requests on a core: it takes up to {REQUESTS_MAX}",
                self.connections, self.requests
            )));
        }
        let mut config = Config {
            connections_max: self.connections.into(),
            requests_max: self.requests.into(),
            pool_pages,
            spin: base::Duration::from_micros(self.spin_us),
            ..Config::of(self.policy)
        };
        config.switch.slice_bytes = self.slice.0 as u32;
        Ok(config)
    }
}

/// A medium as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaArg {
    /// Memory of this size.
    Memory(Size),
    /// A file or device; with a size, a missing or shorter file is created or extended.
    File(PathBuf, Option<Size>),
    /// A software-defined SSD.
    Vssd(VssdArg),
}

/// A software-defined SSD as written on the command line: where it is, its size as clients see it, the device time it
/// emulates, its channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VssdArg {
    /// A file or device; `None` for memory.
    path: Option<PathBuf>,
    size: Option<Size>,
    timing: Option<String>,
    channels: Option<u32>,
    consent: Consent,
}

const NQN_FORM: &str = "the name of a host begins with `nqn.` and has up to 223 bytes: copy it from the host's \
                        /etc/nvme/hostnqn";
/// Channels of a software-defined SSD.
const CHANNELS: u32 = 8;

impl FromStr for VssdArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut vssd = Self {
            path: match parts.next() {
                None | Some("") => return Err("--media takes vssd:mem,size=SIZE or vssd:PATH".into()),
                Some("mem") => None,
                Some(path) => Some(path.into()),
            },
            ..Self::default()
        };
        for part in parts {
            match part.split_once('=') {
                None if part == "format" => vssd.consent.format = true,
                Some(("erase", name)) => vssd.consent.erase = Some(name.into()),
                Some(("size", size)) => {
                    let size = size.parse();
                    vssd.size = Some(size.map_err(|error: crate::size::SizeError| error.to_string())?);
                }
                Some(("timing", name)) => vssd.timing = Some(name.into()),
                Some(("channels", count)) => {
                    let count = count
                        .parse()
                        .ok()
                        .filter(|count| (1..=CHANNELS_MAX as u32).contains(count));
                    vssd.channels = Some(count.ok_or(format!("channels takes 1 to {CHANNELS_MAX}"))?);
                }
                _ => {
                    return Err(format!(
                        "a vSSD takes size=SIZE, timing=NAME, channels=N, format or erase=NAME, not `{part}`"
                    ));
                }
            }
        }
        if vssd.path.is_none() && vssd.size.is_none() {
            return Err("a vSSD in memory needs a size: vssd:mem,size=1GiB".into());
        }
        Ok(vssd)
    }
}

impl MediaArg {
    /// Its file or device; `None` for memory.
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory(_) => None,
            Self::File(path, _) => Some(path),
            Self::Vssd(vssd) => vssd.path.as_deref(),
        }
    }
}

impl FromStr for MediaArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(size) = text.strip_prefix("mem:") {
            return Ok(Self::Memory(
                size.parse()
                    .map_err(|error: crate::size::SizeError| error.to_string())?,
            ));
        }
        if let Some(vssd) = text.strip_prefix("vssd:") {
            return vssd.parse().map(Self::Vssd);
        }
        if ["", "mem", "vssd"].contains(&text) {
            return Err("--media takes mem:SIZE, PATH, PATH:SIZE, vssd:mem,size=SIZE or vssd:PATH".into());
        }
        // A path may have colons of its own: only what reads as a size is one.
        let sized = text
            .rsplit_once(':')
            .and_then(|(path, size)| Some((path, size.parse().ok()?)));
        Ok(match sized {
            Some((path, size)) => Self::File(path.into(), Some(size)),
            None => Self::File(text.into(), None),
        })
    }
}

/// Processors, such as `0`, `2,3`, `4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a list of processors: write for example 0 or 2,3 or 4-7");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= 4096 {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        let mut once = cpus.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() != cpus.len() {
            return Err(format!("`{text}` names a processor twice"));
        }
        Ok(Self(cpus))
    }
}

fn parse_nqn(text: &str) -> Result<String, String> {
    match wire::nvme::is_nqn(text) {
        true => Ok(text.to_owned()),
        false => Err(NQN_FORM.into()),
    }
}

fn parse_class(text: &str) -> Result<(String, Class), String> {
    // The name of a host may have an equals sign of its own.
    match text.rsplit_once('=') {
        Some((whom, "latency")) => Ok((whom.to_owned(), Class::Latency)),
        Some((whom, "throughput")) => Ok((whom.to_owned(), Class::Throughput)),
        _ => Err(
            "--class takes WHOM=latency or WHOM=throughput; WHOM is host:NQN, a volume's name or a port"
                .into(),
        ),
    }
}

fn parse_uuid(text: &str) -> Result<(String, Uuid), String> {
    let parsed = text.rsplit_once('=').and_then(|(name, uuid)| {
        let uuid = Uuid::try_parse(uuid).ok().filter(|uuid| !uuid.is_nil())?;
        Some((name.to_owned(), uuid))
    });
    parsed.ok_or_else(|| {
        "--uuid takes NAME=UUID, such as disk=9f0c1d52-4b0e-4d6c-8f7e-2a91c35be604, which `uuidgen` makes"
            .into()
    })
}

/// Runs until a signal.
pub fn run(args: ServeArgs) -> anyhow::Result<()> {
    if args.show_config {
        return show_config(&args.target()?, args.json);
    }
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    let (volumes, uuids) = open_volumes(&args, &says)?;
    let exports = volumes.iter().map(LocalVolume::export);
    let served: Vec<Served> = exports
        .zip(&uuids)
        .map(|(export, &uuid)| Served {
            name: export.name.clone(),
            size_bytes: export.size_bytes,
            uuid,
        })
        .collect();
    let cores = Arc::new(start(&args, volumes, &uuids, &says)?);
    let control = args.control.map(|address| target::tell(address, &cores, &served));
    let control = control.transpose()?;
    print_recovery(&cores[0], &args, &served, &says)?;
    signals.serving();
    ready(&cores[0], &served, control.as_ref(), &says);
    while !signals.wait(Duration::from_secs(1))? {
        if !cores.iter().all(CoreHandle::is_running) {
            bail!("a core stopped because of a bug: see its message above");
        }
    }
    drop(control);
    let cores = Arc::into_inner(cores).expect("nobody else is left to look at the cores");
    let mut clean = true;
    // The first core hands clients to the others: it stops first.
    for core in cores {
        clean &= core.stop().is_ok();
    }
    if clean {
        Ok(())
    } else {
        bail!("a core stopped because of a bug: see its message above")
    }
}

/// The same text as in the header of `sim run switch-…`.
fn show_config(config: &Config, json: bool) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(&config.to_json())?),
        false => print!("{config}"),
    }
    Ok(())
}

/// Refuses what this machine could not keep: clients that fill such a volume would end the process, and all volumes with it.
fn check_memory(args: &ServeArgs) -> anyhow::Result<()> {
    let cores = args.cores.as_ref().map_or(1, |cpus| cpus.0.len()) as u64;
    let of_media = args.media.iter().map(|media| match media {
        MediaArg::Memory(size) => size.0,
        MediaArg::Vssd(vssd) if vssd.path.is_none() => vssd.size.map_or(0, |size| size.0),
        MediaArg::File(..) | MediaArg::Vssd(_) => 0,
    });
    let media = of_media.fold(0, u64::saturating_add);
    let pools = cores.saturating_mul(args.pool.0);
    let asked = pools.saturating_add(media);
    let Some(have) = memory_bytes().filter(|&have| have < asked) else {
        return Ok(());
    };
    bail!(Failure::Usage(format!(
        "--pool on each core takes {}, and --media in memory takes {}, but this machine has {}: ask for less",
        Size(pools),
        Size(media),
        Size(have)
    )));
}

/// Memory of this machine, as the kernel tells it.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The volumes, and their UUIDs.
fn open_volumes(args: &ServeArgs, says: &Says) -> anyhow::Result<(Vec<LocalVolume>, Vec<Uuid>)> {
    check_memory(args)?;
    if args.name.len() > args.media.len() {
        bail!(Failure::Usage(format!(
            "--name {} has no --media: name one --media for each --name",
            args.name[args.media.len()]
        )));
    }
    let machine = Machine::here()?;
    let mut volumes: Vec<LocalVolume> = Vec::new();
    let mut uuids = Vec::new();
    for (index, media) in args.media.iter().enumerate() {
        let name = args.name.get(index).cloned().unwrap_or_else(|| match index {
            0 => "disk".into(),
            _ => format!("disk{}", index + 1),
        });
        check_name(&name)?;
        if volumes.iter().any(|volume| volume.export().name == name) {
            bail!(Failure::Usage(format!(
                "--name {name} names two volumes: choose different names"
            )));
        }
        let (volume, content) = match media {
            MediaArg::Memory(size) => (open_memory(&name, *size)?, None),
            MediaArg::File(path, size) => (open_image(&name, path, *size, args.read_only, says)?, None),
            MediaArg::Vssd(vssd) => {
                let (volume, content) = open_vssd(&name, vssd, args, says)?;
                (volume, Some(content))
            }
        };
        let given = args.uuids.iter().rfind(|(whose, _)| *whose == name);
        uuids.push(match given {
            Some((_, uuid)) => *uuid,
            None => own_uuid(&machine, &name, media.path(), content, args, says)?,
        });
        if let Some(warning) = volume.warning() {
            says.note(&format!("{name}: {warning}"));
        }
        volumes.push(if args.read_only {
            volume.read_only()
        } else {
            volume
        });
    }
    check_uuids(args, &volumes, &uuids)?;
    Ok((volumes, uuids))
}

/// Each is of a volume, and for NVMe hosts of one.
fn check_uuids(args: &ServeArgs, volumes: &[LocalVolume], uuids: &[Uuid]) -> anyhow::Result<()> {
    let is_known = |name: &String| volumes.iter().any(|volume| volume.export().name == *name);
    if let Some((name, uuid)) = args.uuids.iter().find(|(name, _)| !is_known(name)) {
        bail!(Failure::Usage(format!(
            "--uuid {name}={uuid}: no volume has this name: write one of --name"
        )));
    }
    for (index, uuid) in uuids.iter().enumerate().filter(|_| !args.nvme.is_empty()) {
        if let Some(other) = uuids[..index].iter().position(|other| other == uuid) {
            bail!(Failure::Usage(format!(
                "volumes {} and {} have one UUID, {uuid}: NVMe hosts would take them for one disk. Give one of them another \
                 by --uuid",
                volumes[other].export().name,
                volumes[index].export().name
            )));
        }
    }
    Ok(())
}

/// The UUID that follows from a volume's medium, memory without a path, and from the id of what was made within it. Warns if
/// NVMe hosts would not know the volume again.
fn own_uuid(
    machine: &Machine,
    name: &str,
    path: Option<&Path>,
    content: Option<[u8; 16]>,
    args: &ServeArgs,
    says: &Says,
) -> anyhow::Result<Uuid> {
    let Some(path) = path else {
        return Ok(Uuid::new_v4());
    };
    let found = machine.volume_at(path)?;
    if !found.lasts && !args.nvme.is_empty() {
        says.note(&format!(
            "{name}: nothing names {} for good (a machine id, a WWID or a serial number): NVMe hosts may take it for another \
             disk after a restart, unless --uuid {name}=UUID gives it a UUID",
            path.display()
        ));
    }
    Ok(content.map_or(found, |content| found.of_content(content)).uuid)
}

fn open_memory(name: &str, size: Size) -> anyhow::Result<LocalVolume> {
    if size.0 < PAGE_BYTES as u64 {
        bail!(Failure::Usage(format!(
            "--media mem:{size}: a volume takes at least 4 KiB"
        )));
    }
    LocalVolume::memory(name, size.0).map_err(|error| anyhow::anyhow!("--media mem:{size}: {error}"))
}

/// Opens an image as it is. A size makes a missing file, and must be the size of a file that exists.
fn open_image(
    name: &str,
    path: &Path,
    size: Option<Size>,
    read_only: bool,
    says: &Says,
) -> anyhow::Result<LocalVolume> {
    let shown = path.display();
    let is_missing = !path.exists();
    let open = match size {
        _ if read_only => ImageOpen::ToRead,
        Some(Size(bytes)) if is_missing && (bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES as u64)) => {
            bail!(Failure::Usage(format!(
                "--media {shown}: a new file has a multiple of 4 KiB, not {bytes} bytes"
            )));
        }
        Some(Size(bytes)) if is_missing => ImageOpen::Create { bytes },
        Some(_) | None => ImageOpen::Existing,
    };
    let volume = LocalVolume::image(name, path, open).map_err(|error| match error {
        MediaOpenError::InUse(_) => Failure::InUse(error.to_string()).into(),
        MediaOpenError::Missing(_) if read_only => anyhow::Error::from(error),
        MediaOpenError::Missing(_) => {
            anyhow::anyhow!("{error}: name a size to create it, as in {shown}:1GiB")
        }
        error => error.into(),
    })?;
    let (have, rest) = (volume.export().size_bytes, volume.rest_bytes());
    if let Some(size) = size.filter(|size| size.0 != have + rest) {
        bail!(Failure::Usage(format!(
            "--media {shown}:{size}: it exists and has {} bytes: omit the size to serve it as it is, or change it first, \
             as by `truncate -s {} {shown}`",
            have + rest,
            size.0
        )));
    }
    if have == 0 {
        bail!(Failure::Usage(format!(
            "--media {shown}: it has {rest} bytes, and a volume has at least one block of 512: enlarge it first, as by \
             `truncate -s 1G {shown}`"
        )));
    }
    if rest > 0 {
        says.note(&format!(
            "{name}: the last {rest} bytes of {shown} are not served, because a volume has whole blocks of 512 bytes"
        ));
    }
    Ok(volume)
}

/// The write caches of all vSSDs leave most of the pool to requests.
fn cache_pages(args: &ServeArgs) -> usize {
    let vssds = args
        .media
        .iter()
        .filter(|media| matches!(media, MediaArg::Vssd(_)));
    let pool_pages = (args.pool.0 / PAGE_BYTES as u64) as usize;
    (pool_pages / 8 / vssds.count().max(1)).clamp(16, 2048)
}

/// The volume, and the id of its format.
fn open_vssd(
    name: &str,
    vssd: &VssdArg,
    args: &ServeArgs,
    says: &Says,
) -> anyhow::Result<(LocalVolume, [u8; 16])> {
    if args.cores.as_ref().is_some_and(|cpus| cpus.0.len() > 1) {
        bail!(Failure::Usage(
            "--cores: one core serves a vSSD: name one processor, or serve the vSSD by a process of its own"
                .into()
        ));
    }
    let timing = config::timing(vssd.timing.as_deref().unwrap_or("none"))?;
    let channels = vssd.channels.unwrap_or(CHANNELS);
    let size_bytes = vssd
        .size
        .map(|size| size.0 / PAGE_BYTES as u64 * PAGE_BYTES as u64);
    let media_bytes = match size_bytes {
        Some(bytes) => datadir::media_bytes_for(bytes, channels)
            .ok_or_else(|| Failure::Usage(format!("--media vssd: size {} is not possible", Size(bytes))))?,
        None => 0,
    };
    let (mut medium, description) = match &vssd.path {
        None => {
            let medium = datadir::open_memory(media_bytes, datadir::Shape::channels(channels))?;
            (medium, "a vSSD in memory".to_owned())
        }
        Some(path) => {
            if size_bytes.is_none() && !path.exists() {
                let path = path.display();
                bail!("{path} does not exist: name a size to create it, as in vssd:{path},size=1GiB");
            }
            let shape = datadir::Shape::channels(channels);
            let (medium, made) = datadir::open_named(path, media_bytes, shape, &vssd.consent)?;
            if made {
                says.note(&format!("{name}: formatted {}", path.display()));
            }
            (medium, path.display().to_string())
        }
    };
    let entry = DiskEntry::open(&mut medium, size_bytes).map_err(|error| match error {
        DiskError::Size { have_bytes, .. } => Failure::Usage(format!(
            "{description} was made with {}: omit size, or name another file",
            Size(have_bytes)
        ))
        .into(),
        error => anyhow::anyhow!("{description}: {error}"),
    })?;
    if vssd.channels.is_some_and(|channels| channels != entry.channels()) {
        bail!(Failure::Usage(format!(
            "{description} was made with {} channels: omit channels, or name another file",
            entry.channels()
        )));
    }
    let config = DiskConfig {
        cache_pages: cache_pages(args),
        ..DiskConfig::new(timing, entry.channels())
    };
    let content = entry.uuid();
    Ok((LocalVolume::disk(name, "vSSD", medium, entry, config), content))
}

/// Tells what the recovery of the vSSDs found, if anything.
fn print_recovery(core: &CoreHandle, args: &ServeArgs, served: &[Served], says: &Says) -> anyhow::Result<()> {
    let vssds = args
        .media
        .iter()
        .zip(served)
        .filter(|(media, _)| matches!(media, MediaArg::Vssd(_)));
    for (host, (_, Served { name, .. })) in vssds.enumerate() {
        let report = core.call(host, |host, _| {
            host.as_any_mut()
                .downcast_ref::<Disk>()
                .map(|disk| disk.report().clone())
        })?;
        let Some(report) = report else { continue };
        if report.entries_replayed > 0 {
            says.note(&format!(
                "{name}: {} writes since the last checkpoint were replayed, {} were cut short",
                report.entries_replayed, report.torn
            ));
        }
        if !report.damaged.is_empty() {
            says.note(&format!(
                "{name}: {} pages are damaged: reading them fails until they are written anew",
                report.damaged.len()
            ));
        }
    }
    Ok(())
}

/// A name is part of an NQN and of a URI.
fn check_name(name: &str) -> anyhow::Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(fine) {
        bail!(Failure::Usage(format!(
            "--name {name}: 1 to 64 letters, digits, `-`, `_` or `.`"
        )));
    }
    Ok(())
}

/// The volumes as NVMe subsystems.
fn subsystems(args: &ServeArgs, volumes: &[LocalVolume], uuids: &[Uuid]) -> anyhow::Result<Target> {
    let mut target = Target::new(TargetOptions::default());
    let allowed = (!args.allow.is_empty()).then(|| args.allow.clone());
    for ((volume, uuid), id) in volumes.iter().zip(uuids).zip(0..) {
        let export = volume.export();
        let subsystem = Subsystem {
            read_only: export.read_only,
            hosts: allowed.clone(),
            // Whoever uses the volume passes this process.
            reservable: true,
            allocation: Some(volume.allocation()),
            ..Subsystem::new(&export.name, VolumeId(id), export.size_bytes, uuid.into_bytes())
        };
        target
            .add(subsystem)
            .map_err(|error| Failure::Usage(format!("--name {}: {error}", export.name)))?;
    }
    target.set_referrals(args.referral.iter().copied().map(runtime::nvme_address).collect());
    Ok(target)
}

/// Connections per core, as far as the pool has room for each to have a page under way and another one to come.
fn connections_of_pool(args: &ServeArgs, says: &Says) -> u16 {
    let room = args.pool.0 / 4 / (2 * PAGE_BYTES as u64);
    let wanted = args.connections;
    if room < wanted.into() {
        says.note(&format!(
            "--connections is {room}, not {wanted}: --pool {} has room for no more",
            args.pool
        ));
    }
    wanted.min(u16::try_from(room).unwrap_or(wanted))
}

/// Connections per core, as far as there is memory and this process may have open files for them.
fn connections(args: &ServeArgs, says: &Says) -> anyhow::Result<usize> {
    let cores = args.cores.as_ref().map_or(1, |cpus| cpus.0.len()) as u64;
    let listeners = (args.nbd.len() + args.nvme.len() + 1) as u64;
    let others = launch::FILES_OF_MEDIUM * args.media.len() as u64 + listeners;
    let connections = launch::connections(connections_of_pool(args, says), others, cores, says)?;
    Ok(connections.into())
}

fn start(
    args: &ServeArgs,
    volumes: Vec<LocalVolume>,
    uuids: &[Uuid],
    says: &Says,
) -> anyhow::Result<Vec<CoreHandle>> {
    let target = Config {
        connections_max: connections(args, says)?,
        ..args.target()?
    };
    let classes = class_rules(args, &volumes)?;
    let media_limit = config::media_timeout(args.media_timeout_s)?;
    let config = |cpu| CoreConfig {
        target,
        classes: classes.clone(),
        cpu,
        media_limit,
        spans: args.control.is_some(),
        events: Some(events::teller()),
        ..CoreConfig::default()
    };
    let configs = match &args.cores {
        Some(CpuList(cpus)) => cpus.iter().map(|&cpu| config(Some(cpu))).collect(),
        None => vec![config(None)],
    };
    let nbd = match (args.nbd.is_empty(), args.nvme.is_empty()) {
        (true, true) => vec![SocketAddr::from(([127, 0, 0, 1], 10_809))],
        _ => args.nbd.clone(),
    };
    let subsystems = NvmeTarget::new(subsystems(args, &volumes, uuids)?);
    let nbd = nbd.into_iter().map(|address| {
        let protocol = Nbd::beside(subsystems.clone());
        Listen::tcp(address, protocol)
    });
    let nvme = args.nvme.iter();
    let nvme = nvme.map(|address| Listen::tcp(*address, Nvme::new(subsystems.clone())));
    let listen = nbd.chain(nvme).collect();
    let spec = TargetSpec { volumes, listen };
    let cores = runtime::start_target(configs, spec).map_err(|error| match error {
        StartError::Listen { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            let text = format!("{address}/tcp is in use: stop its user, or choose another address");
            anyhow::Error::from(Failure::InUse(text))
        }
        StartError::Build { source, .. } => {
            anyhow::anyhow!(
                "a vSSD cannot start: {source}. `switchyard verify` on its medium shows the damage"
            )
        }
        error => error.into(),
    })?;
    // With the real ports.
    let addresses = cores[0].target_listening(nvme::NAME);
    let addresses: Vec<_> = addresses.into_iter().map(runtime::nvme_address).collect();
    subsystems.with(&mut |target| target.set_addresses(addresses.clone()));
    Ok(cores)
}

fn class_rules(args: &ServeArgs, volumes: &[LocalVolume]) -> anyhow::Result<ClassRules> {
    let mut rules = ClassRules::default();
    for (whom, class) in &args.classes {
        if let Some(nqn) = whom.strip_prefix("host:") {
            if !wire::nvme::is_nqn(nqn) {
                bail!(Failure::Usage(format!("--class {whom}: {NQN_FORM}")));
            }
            rules.hosts.push((nqn.to_owned(), *class));
            continue;
        }
        let volume = volumes.iter().position(|volume| volume.export().name == *whom);
        match (volume, whom.parse()) {
            (Some(index), _) => rules.volumes.push((VolumeId(index as u32), *class)),
            (None, Ok(port)) => rules.ports.push((port, *class)),
            (None, Err(_)) => bail!(Failure::Usage(format!(
                "--class {whom}: name a volume of --name, a port, or host:NQN"
            ))),
        }
    }
    Ok(rules)
}

fn ready(first: &CoreHandle, volumes: &[Served], control: Option<&Server>, says: &Says) {
    let control = control.map(|server| format!("http://{}", server.address()));
    let (nbd, nvme) = (
        first.target_listening(nbd::NAME),
        first.target_listening(nvme::NAME),
    );
    if says.json {
        let volumes: Vec<_> = volumes
            .iter()
            .map(|volume| {
                let name = &volume.name;
                let uris: Vec<String> = nbd
                    .iter()
                    .map(|address| format!("nbd://{address}/{name}"))
                    .collect();
                let addresses: Vec<String> = nvme.iter().map(SocketAddr::to_string).collect();
                serde_json::json!({
                    "name": name, "size_bytes": volume.size_bytes, "uuid": volume.uuid, "nbd": uris,
                    "nqn": nvme::nqn_of(name), "nvme": addresses,
                })
            })
            .collect();
        println!(
            "{}",
            serde_json::json!({
                "part": target::ROLE, "volumes": volumes, "control": control, "pid": std::process::id(),
            })
        );
    } else {
        if let Some(control) = control {
            println!("control {control}");
        }
        for Served { name, size_bytes, .. } in volumes {
            let size = Size(*size_bytes);
            for address in &nbd {
                println!("volume {name}  nbd://{address}/{name}  {size}");
            }
            for address in &nvme {
                println!("volume {name}  {} at {address}/tcp  {size}", nvme::nqn_of(name));
            }
        }
    }
    crate::out::flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_read_as_written() {
        let path = |text: &str| PathBuf::from(text);
        let size = |text: &str| text.parse::<Size>().expect("a size");
        for (text, expected) in [
            ("mem:1GiB", MediaArg::Memory(size("1GiB"))),
            ("/dev/sdb", MediaArg::File(path("/dev/sdb"), None)),
            ("a.img:4GiB", MediaArg::File(path("a.img"), Some(size("4GiB")))),
            ("odd:name", MediaArg::File(path("odd:name"), None)),
            (
                "vssd:/srv/v,size=1GiB,timing=p-ssd,channels=4",
                MediaArg::Vssd(VssdArg {
                    path: Some(path("/srv/v")),
                    size: Some(size("1GiB")),
                    timing: Some("p-ssd".into()),
                    channels: Some(4),
                    consent: Consent::default(),
                }),
            ),
            (
                "vssd:/dev/sdb",
                MediaArg::Vssd(VssdArg {
                    path: Some(path("/dev/sdb")),
                    ..VssdArg::default()
                }),
            ),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "mem:",
            "vssd",
            "vssd:",
            "vssd:mem",
            "vssd:a,b",
            "vssd:a,size=x",
            "vssd:a,channels=0",
        ] {
            assert!(bad.parse::<MediaArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn classes_are_given_to_hosts_volumes_and_ports() {
        for (text, whom, class) in [
            ("disk=latency", "disk", Class::Latency),
            ("4420=throughput", "4420", Class::Throughput),
            (
                "host:nqn.2014-08.a:b=c=latency",
                "host:nqn.2014-08.a:b=c",
                Class::Latency,
            ),
        ] {
            assert_eq!(parse_class(text), Ok((whom.to_owned(), class)));
        }
        assert!(parse_class("host:nqn.a").is_err() && parse_class("disk=fast").is_err());
    }

    #[test]
    fn a_uuid_is_given_to_a_volume() {
        let uuid = "9f0c1d52-4b0e-4d6c-8f7e-2a91c35be604";
        let parsed = parse_uuid(&format!("disk={uuid}")).expect("a UUID");
        assert_eq!(
            (parsed.0.as_str(), parsed.1.to_string()),
            ("disk", uuid.to_owned())
        );
        let nil = Uuid::nil();
        for bad in ["disk", "disk=", "disk=1", uuid, &format!("disk={nil}")] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn processors_are_read_as_written() {
        assert_eq!("0".parse(), Ok(CpuList(vec![0])));
        assert_eq!("2,4-6".parse(), Ok(CpuList(vec![2, 4, 5, 6])));
        for bad in ["", "a", "3-1", "1,1", "1-", "99999"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }
}
