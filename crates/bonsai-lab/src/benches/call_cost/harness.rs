//! The processes of a cell, and how they take turns.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{Cell, Generation, Operation, Round, VARIANTS, Variant};
use crate::child::Running;
use crate::context::Context;
use crate::service::{Doors, Service};
use crate::study::median_or_zero;

const PATIENCE: Duration = Duration::from_secs(20);
const BATCHES: u32 = 5;

/// Starts the processes of a cell.
pub(super) struct Harness<'a> {
    pub(super) program: &'a Path,
    pub(super) file: &'a Path,
    pub(super) threads: u32,
    pub(super) processes: u32,
}

impl Harness<'_> {
    pub(super) fn start(
        &self,
        operation: &str,
        process: u32,
        service: Option<&Service>,
    ) -> anyhow::Result<Running> {
        let mut command = std::process::Command::new(self.program);
        // The last CPU first: the first one has the most interrupts.
        let cpus = u32::try_from(crate::facts::cpus()).unwrap_or(1);
        let cpu = (cpus - 1 + process) % cpus;
        command
            .args([operation, &self.threads.to_string(), &cpu.to_string()])
            .arg(self.file);
        if let Some(service) = service {
            service.enter(&mut command);
        }
        Running::start(&mut command)
    }

    /// Operations of a batch, and a limit of four times what the bare program can do.
    pub(super) fn calibrate(&self, operation: &Operation) -> anyhow::Result<(u64, String)> {
        let mut bare = vec![self.start(operation.name, 0, None)?];
        let mut ns = f64::INFINITY;
        for _ in 0..3 {
            let batches = measure(&mut bare, 2_000)?;
            let cpu: Vec<f64> = batches
                .iter()
                .map(|(_, cpu)| *cpu as f64 / 2_000.0)
                .collect();
            ns = ns.min(median_or_zero(&cpu).max(0.1));
        }
        let count = whole(500_000.0 / ns).max(64);
        let runners = f64::from(self.threads * self.processes).min(crate::facts::cpus() as f64);
        let per_second = whole(4.0 * runners * 1e9 / ns);
        let limit = if operation.in_bytes {
            format!(
                "{}={}B/s",
                operation.class,
                (per_second * operation.bytes).min(100_000_000_000)
            )
        } else {
            format!("{}={per_second}/s", operation.class)
        };
        Ok((count, limit))
    }

    pub(super) fn generation(
        &self,
        context: &mut Context,
        operation: &Operation,
        cell: &Cell,
        count: u64,
        limit: &str,
        rounds: u32,
    ) -> anyhow::Result<Generation> {
        // The same for each stream; of calls that have none, one on others.
        let per_stream = match limit.split_once('=') {
            Some((class, rate)) if operation.in_bytes => format!("{class}/stream={rate}"),
            _ => "send/stream=100GB/s".to_owned(),
        };
        let services = [
            (Variant::NoLimit, context.service::<&str>(Doors::Both, &[])?),
            (Variant::First, context.service(Doors::First, &[limit])?),
            (Variant::Both, context.service(Doors::Both, &[limit])?),
            (
                Variant::Streams,
                context.service(Doors::Both, &[&per_stream])?,
            ),
        ];
        let mut running: BTreeMap<Variant, Vec<Running>> = BTreeMap::new();
        for variant in VARIANTS {
            let service = services
                .iter()
                .find(|(of, _)| *of == variant)
                .map(|(_, service)| service);
            let start = |process| self.start(operation.name, process, service);
            running.insert(
                variant,
                (0..self.processes).map(start).collect::<Result<_, _>>()?,
            );
        }
        let mut made = Vec::new();
        for _ in 0..rounds {
            let mut order = VARIANTS.to_vec();
            context.shuffle(&mut order);
            let mut batches = BTreeMap::new();
            for variant in &order {
                let processes = running.entry(*variant).or_default();
                batches.insert(*variant, measure(processes, count)?);
            }
            made.push(Round { order, batches });
            context.check()?;
        }
        for (_, service) in &services {
            let (attached, _) = service.attached();
            let wanted = usize::try_from(self.processes)?;
            anyhow::ensure!(
                attached >= wanted,
                "{attached} of {wanted} processes attached to their service"
            );
        }
        let unshaped = services.iter().map(|(_, service)| service.unshaped()).sum();
        Ok(Generation {
            cell: cell.clone(),
            limit: limit.to_owned(),
            count,
            rounds: made,
            unshaped,
        })
    }
}

/// Lets all processes make batches of `count` operations at the same time.
pub(super) fn measure(processes: &mut [Running], count: u64) -> anyhow::Result<Vec<(u64, u64)>> {
    for process in processes.iter_mut() {
        process.tell(&format!("{count} {BATCHES}"))?;
    }
    let mut all = Vec::new();
    for process in processes {
        let batches: Vec<(u64, u64)> = serde_json::from_str(&process.line(PATIENCE)?)?;
        all.extend(batches);
    }
    Ok(all)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count, not negative; a cast from float saturates"
)]
fn whole(value: f64) -> u64 {
    value as u64
}
