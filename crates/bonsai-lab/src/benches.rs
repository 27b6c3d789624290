//! The benchmarks.

mod api;
mod call_cost;
mod decide;
mod enforced;
mod event_loops;
mod exactness;
mod fig12;
mod groups;
mod history;
mod injected;
mod links;
mod live_change;
mod media;
mod meter;
mod nbd;
mod nbd_scan;
mod network;
mod notes;
mod peers;
mod players;
mod programs;
mod reaction;
mod replay;
mod rtsp;
mod servers;
mod shares;
mod sim_speed;
mod startup;
mod traces;
mod trapped;
mod wait_cpu;
mod web;
mod week;

use crate::context::Context;
use crate::record::Record;
use crate::report::Section;

pub(crate) use api::crowd::{Crowd, hold};

/// Something that can be measured.
pub(crate) trait Benchmark: Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// What it measures, in a line.
    fn about(&self) -> &'static str;

    /// Measures; every sample goes into the record.
    ///
    /// # Errors
    /// It cannot be measured here, or a signal asks the run to end.
    fn run(&self, context: &mut Context) -> anyhow::Result<()>;

    /// What the record says.
    fn report(&self, record: &Record) -> Section;
}

/// All of them, in the order in which they run.
pub(crate) const ALL: &[&dyn Benchmark] = &[
    &call_cost::CallCost,
    &injected::Injected,
    &programs::Programs,
    &enforced::EnforcedCost,
    &trapped::TrappedCost,
    &startup::Startup,
    &wait_cpu::WaitCpu,
    &exactness::Exactness,
    &live_change::LiveChange,
    &groups::Groups,
    &servers::Servers,
    &event_loops::EventLoops,
    &nbd::NbdHot,
    &nbd_scan::NbdScan,
    &nbd::NbdRecord,
    &nbd::NbdScale,
    &nbd::NbdZeroes,
    &nbd::NbdGuests,
    &replay::Replay,
    &rtsp::Rtsp,
    &history::HistoryCost,
    &peers::Peers,
    &fig12::Fig12,
    &shares::Shares,
    &reaction::Reaction,
    &decide::PolicyCost,
    &sim_speed::SimSpeed,
    &week::PolicyWeek,
    &api::Api,
    &links::generator::Generator,
    &links::accuracy::Accuracy,
    &links::change::Change,
    &links::churn::Churn,
    &links::paper::Paper,
    &links::media::Media,
    &links::parts::Parts,
    &links::idle::Idle,
    &links::protected::Delay,
    &links::cost::Cost,
    &links::scale::Scale,
    &meter::MeterCost,
    &traces::TraceImport,
    &players::Players,
    &media::cross::Cross,
    &media::capacity::Capacity,
    &media::fig11::Fig11,
    &media::fig12::Fig12,
    &media::ten::Ten,
    &media::vod::Vod,
];
