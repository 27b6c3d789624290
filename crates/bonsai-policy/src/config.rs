//! What a person wants: capacities, groups, classes, services, and how automatic it may be.

use std::sync::Arc;

use bonsai_units::Resource;

/// A name of a service, class or group; cheap to copy.
pub type Name = Arc<str>;

/// Whether two names are the same. Whoever observes keeps them, so that most need not be read.
#[must_use]
pub fn is_same(a: &Name, b: &Name) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// One value for each resource, in the order of [`Resource::ALL`].
pub type PerResource<T> = [T; Resource::COUNT];

/// The heaviest weight; the lightest is 1.
pub const MAX_WEIGHT: u32 = 1_000;

/// How the share of a service is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// As configured, whatever is used.
    Static,
    /// What is not used is lent, and given back when it is wanted.
    #[default]
    Dynamic,
    /// Dynamic, and guarantees follow the demand that was learned.
    Adaptive,
    /// Dynamic, and guarantees follow what clients report.
    Qos,
}

/// What becomes of guarantees that the policy would change by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Automatic {
    /// It says what it would do, and does not do it.
    #[default]
    DryRun,
    /// It does it.
    On,
}

/// What becomes of guarantees that come to more than there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overcommit {
    /// The configuration is refused.
    #[default]
    Refuse,
    /// They are made smaller, all in the same proportion.
    Scale,
}

/// What somebody has of one resource, as far as it is said. Rates are thousandths of a unit
/// per second, as [`bonsai_units::Rate::milli`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The guarantee: what it gets whatever others do.
    pub min: Option<u64>,
    /// The ceiling: the most it gets, guarantee and borrowed together.
    pub max: Option<u64>,
    /// Its part of what is left beyond the guarantees, 1 to [`MAX_WEIGHT`].
    pub weight: Option<u32>,
}

impl Terms {
    /// These terms, and where they say nothing, those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            min: self.min.or(other.min),
            max: self.max.or(other.max),
            weight: self.weight.or(other.weight),
        }
    }
}

/// What clients of a service may see at worst; what is not said is not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Target {
    /// Part of packets lost, 0 to 1.
    pub loss: Option<f64>,
    /// Delay, milliseconds.
    pub delay_ms: Option<f64>,
    /// Jitter, milliseconds.
    pub jitter_ms: Option<f64>,
    /// Stalls per report.
    pub stalls: Option<f64>,
    /// Whose guarantee is raised for it; `send` where nothing is said.
    pub resource: Option<Resource>,
}

/// A node of the tree of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub name: Name,
    /// The group that it is in.
    pub parent: Option<Name>,
    /// What all of its members have together.
    pub terms: PerResource<Terms>,
}

/// Named defaults of services.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// What it is called.
    pub name: Name,
    /// How shares of its services are decided, where that differs.
    pub mode: Option<Mode>,
    /// The group of its services.
    pub group: Option<Name>,
    /// What each of its services has.
    pub terms: PerResource<Terms>,
    /// What clients of its services may see at worst.
    pub target: Option<Target>,
}

/// A service.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// What it is called.
    pub name: Name,
    /// Where its defaults come from; [`Config::default_class`] where nothing is said.
    pub class: Option<Name>,
    /// The group that it is in; its class' where nothing is said.
    pub group: Option<Name>,
    /// How its share is decided, where that differs.
    pub mode: Option<Mode>,
    /// What it has.
    pub terms: PerResource<Terms>,
    /// What its clients may see at worst.
    pub target: Option<Target>,
    /// Whether nobody has promised it anything, so that what its class guarantees is its own only
    /// as far as the guarantees that a person wrote leave room.
    pub unasked: bool,
}

impl Service {
    /// A service of which nothing is said but its name.
    #[must_use]
    pub fn named(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            class: None,
            group: None,
            mode: None,
            terms: Default::default(),
            target: None,
            unasked: false,
        }
    }
}

/// How guarantees follow what was learned. Parts are thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    /// The percentile of demand that is guaranteed, in thousandths: 950 is p95.
    pub percentile: u32,
    /// So much more than that, in thousandths (VPA: 150).
    pub margin: u32,
    /// An observation counts half as much after so many hours (VPA: 24).
    pub half_life_h: u32,
    /// A guarantee is lowered by at most so much a minute, in thousandths (senpai: 10).
    pub lower_per_minute: u32,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            percentile: 950,
            margin: 150,
            half_life_h: 24,
            lower_per_minute: 10,
        }
    }
}

/// How guarantees follow what clients report. Parts are thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// While the target is missed, a guarantee is raised by so much at a time.
    pub raise: u32,
    /// Not again before so many milliseconds, that is, before reports can show the effect.
    pub settle_ms: u32,
    /// While it holds, a guarantee is lowered by so much at a time.
    pub lower: u32,
    /// Once it has held for so many milliseconds, and as often.
    pub hold_ms: u32,
    /// A guarantee is raised to at most so many thousandths of the configured one.
    pub most: u32,
}

impl Default for Qos {
    fn default() -> Self {
        Self {
            raise: 250,
            settle_ms: 1_000,
            lower: 20,
            hold_ms: 30_000,
            most: 4_000,
        }
    }
}

/// Everything that a person decides. Parts are thousandths.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What there is of each resource; one without is not shared, and only ceilings hold.
    pub capacity: PerResource<Option<u64>>,
    /// How shares are decided, where neither service nor class says.
    pub mode: Mode,
    /// Whether guarantees are changed automatically.
    pub automatic: Automatic,
    /// What becomes of guarantees that come to more than there is.
    pub overcommit: Overcommit,
    /// Demand is what was used and so much more.
    pub headroom: u32,
    /// Limits move only by more than so much.
    pub hysteresis: u32,
    /// So much of a capacity is never guaranteed automatically nor admitted.
    pub reserve: u32,
    /// Most that guarantees of the services of one owner (`owner:name`) grow by together, automatically: their reports and their
    /// demand move them. No bound but the others without it.
    pub owner_most: Option<u32>,
    /// Most that weights of the services of one owner (`owner:name`) in the same group come to: more share that, so that a share
    /// does not grow with the number of services. The heaviest of them counts in full.
    pub owner_weight: u32,
    /// The class of services that name none.
    pub default_class: Option<Name>,
    /// The tree of groups.
    pub groups: Vec<Group>,
    /// Named defaults.
    pub classes: Vec<Class>,
    /// Services. One that runs and is not among them has the defaults of its class, and is unasked.
    pub services: Vec<Service>,
    /// Mode adaptive.
    pub adaptive: Adaptive,
    /// Mode qos.
    pub qos: Qos,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capacity: [None; Resource::COUNT],
            mode: Mode::default(),
            automatic: Automatic::default(),
            overcommit: Overcommit::default(),
            headroom: 250,
            hysteresis: 50,
            reserve: 50,
            owner_most: None,
            owner_weight: 1,
            default_class: None,
            groups: Vec::new(),
            classes: Vec::new(),
            services: Vec::new(),
            adaptive: Adaptive::default(),
            qos: Qos::default(),
        }
    }
}
