//! Fills an area with keys in random order, within a limit of memory, and tells rate and resident size as it goes.
//!
//! ```text
//! cargo run --release -p switchyard-area --example fill -- FILE [ENTRIES [MEMORY_MIB [VALUE_BYTES [BATCH]]]]
//! ```

#![allow(
    clippy::disallowed_types,
    reason = "an example measures the time that a user waits"
)]

use area::{Area, AreaOptions, Op};
use std::time::Instant;

/// A permutation of 64-bit numbers: each index another key, without order.
fn mix(index: u64) -> u64 {
    let mut x = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn key(index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(index).to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

fn resident_mib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}

/// Opens the area, and tells how long that takes: also after the program was killed.
fn open(path: &str, options: &AreaOptions) -> Result<Area, area::AreaError> {
    let start = Instant::now();
    let area = Area::open(path.as_ref(), options)?;
    println!(
        "opened in {:.3} s: {:?}",
        start.elapsed().as_secs_f64(),
        area.report()
    );
    Ok(area)
}

fn main() -> Result<(), area::AreaError> {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| args.get(at).and_then(|it| it.parse().ok()).unwrap_or(default);
    let path = args.get(1).map_or("fill.area", String::as_str);
    let (entries, memory_mib) = (number(2, 1_000_000), number(3, 256));
    let (value_bytes, batch) = (number(4, 100) as usize, number(5, 100));
    // Room for the tables, what is merged, and the log.
    let bytes = entries * (value_bytes as u64 + 64) * 2 + (1 << 30);
    let options = AreaOptions::new(bytes).with_memory(memory_mib << 20);
    let area = open(path, &options)?;
    let map = area.tree("it")?.id();
    let (start, mut last) = (Instant::now(), Instant::now());
    let tenth = (entries / 20).max(batch);
    let (mut done, mut since) = (0, 0);
    let value = vec![0x5a; value_bytes];
    while done < entries {
        let keys: Vec<[u8; 16]> = (done..(done + batch).min(entries)).map(key).collect();
        let put = |key| Op::Put {
            map,
            key,
            data: &value,
        };
        let ops: Vec<Op<'_>> = keys.iter().map(|key| put(&key[..])).collect();
        area.commit(&ops)?;
        done += ops.len() as u64;
        since += ops.len() as u64;
        if since >= tenth || done == entries {
            let stats = area.stats();
            println!(
                "{done:>11} entries  {:>9.0}/s  resident {:>4} MiB  index {:>3} MiB  tables {:>5}  flushes {:>4}  merges {:>5}",
                since as f64 / last.elapsed().as_secs_f64(),
                resident_mib("VmRSS"),
                stats.index_bytes >> 20,
                stats.tables,
                stats.flushes,
                stats.merges
            );
            (since, last) = (0, Instant::now());
        }
    }
    println!(
        "{:.0}/s over all, {} MiB resident at most, {:?}",
        entries as f64 / start.elapsed().as_secs_f64(),
        resident_mib("VmHWM"),
        area.stats()
    );
    drop(area);
    let area = open(path, &options)?;
    let map = area.tree("it")?;
    let start = Instant::now();
    let reads = 20_000.min(entries);
    for index in 0..reads {
        let at = key(mix(index) % entries);
        assert_eq!(map.get(&at)?.as_deref(), Some(&value[..]), "{index}");
    }
    println!(
        "{:.0} random reads/s",
        reads as f64 / start.elapsed().as_secs_f64()
    );
    Ok(())
}
