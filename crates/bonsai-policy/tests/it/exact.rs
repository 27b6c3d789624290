//! The shares, compared with two other ways to find them.
//!
//! *Fractions*: at a node, what all get is a function of the level that is linear between the
//! levels at which somebody becomes full. Every one of these is tried, without any order, in
//! fractions of whole numbers of any length.
//!
//! *Linear programs*: the variables are the shares of services. The level of all that are not
//! fixed yet is made as high as it goes; who cannot have more then, as a program for each says,
//! is fixed; and so on. What a group can take follows from its services' bounds, nothing of
//! which is computed beforehand. This is done at the root, then in each group.
//!
//! Rounding is to whole thousandths of a unit per second at each node of the way down, so a
//! share is within one of them per level of the exact one.

use bonsai_policy::{Config, Policy};
use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome, Variable};
use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::prelude::*;

use crate::cases::{Case, SEND, cases};

type Fraction = BigRational;

fn whole(value: u64) -> Fraction {
    Fraction::from_integer(BigInt::from(value))
}

/// A node as the two ways see it: bounds in plain numbers, children by index.
#[derive(Clone, Debug)]
struct Node {
    min: u64,
    max: Option<u64>,
    weight: u32,
    /// Of a service: what it demands; `None` is everything.
    demand: Option<u64>,
    kids: Vec<usize>,
    is_service: bool,
}

/// The root, the groups, and the services.
fn nodes(case: &Case, config: &Config, demands: &[Option<u64>]) -> Vec<Node> {
    let groups = case.groups.len();
    let root = Node {
        min: 0,
        max: None,
        weight: 1,
        demand: None,
        kids: Vec::new(),
        is_service: false,
    };
    let node = |terms: &bonsai_policy::Terms, demand, is_service| Node {
        min: terms.min.unwrap_or(0),
        max: terms.max,
        weight: terms.weight.unwrap_or(1),
        demand,
        is_service,
        ..root.clone()
    };
    let mut nodes = vec![root.clone()];
    nodes.extend(
        config
            .groups
            .iter()
            .map(|g| node(&g.terms[SEND], None, false)),
    );
    let services = config.services.iter().zip(demands);
    nodes.extend(services.map(|(s, &demand)| node(&s.terms[SEND], demand, true)));
    for (i, group) in case.groups.iter().enumerate() {
        nodes[group.parent].kids.push(i + 1);
    }
    for (i, service) in case.services.iter().enumerate() {
        nodes[service.parent].kids.push(groups + 1 + i);
    }
    nodes
}

/// The most that a node can take, of a machine that has `capacity`.
fn most(nodes: &[Node], at: usize, capacity: u64) -> u64 {
    let node = &nodes[at];
    let inside = if node.is_service {
        node.demand.unwrap_or(capacity)
    } else {
        let kids = node.kids.iter().map(|&kid| most(nodes, kid, capacity));
        kids.sum::<u64>()
    };
    inside.min(node.max.unwrap_or(u64::MAX))
}

/// What a node gets before others get more than theirs.
fn floor(nodes: &[Node], at: usize, capacity: u64) -> u64 {
    let kids = nodes[at]
        .kids
        .iter()
        .map(|&kid| floor(nodes, kid, capacity));
    let own = kids.sum::<u64>().max(nodes[at].min);
    own.min(most(nodes, at, capacity))
}

/// What the children get of `amount`, by trying every level at which one becomes full.
fn by_fractions(kids: &[(u64, u64, u32)], amount: &Fraction) -> Vec<Fraction> {
    let gets = |level: &Fraction, &(floor, most, weight): &(u64, u64, u32)| {
        let rising = whole(floor) + level * whole(u64::from(weight));
        rising.min(whole(most))
    };
    let total = |level: &Fraction| -> Fraction {
        kids.iter()
            .map(|kid| gets(level, kid))
            .fold(whole(0), |a, b| a + b)
    };
    let full_at = |&(floor, most, weight): &(u64, u64, u32)| {
        Fraction::new(BigInt::from(most - floor), BigInt::from(weight))
    };
    let levels: Vec<Fraction> = kids.iter().map(full_at).chain([whole(0)]).collect();
    let below = levels.iter().filter(|level| total(level) <= *amount).max();
    let below = below.cloned().expect("floors fit");
    // From there on, those who are not full share the rest.
    let open = kids.iter().filter(|kid| full_at(kid) > below);
    let weight: u64 = open.map(|kid| u64::from(kid.2)).sum();
    let level = match weight {
        0 => below,
        _ => &below + (amount - total(&below)) / whole(weight),
    };
    kids.iter().map(|kid| gets(&level, kid)).collect()
}

fn all_by_fractions(nodes: &[Node], capacity: u64) -> Vec<Fraction> {
    let mut given = vec![whole(0); nodes.len()];
    given[0] = whole(capacity);
    // Parents stand before their children.
    for at in 0..nodes.len() {
        let kids = &nodes[at].kids;
        let terms: Vec<_> = kids
            .iter()
            .map(|&kid| {
                (
                    floor(nodes, kid, capacity),
                    most(nodes, kid, capacity),
                    nodes[kid].weight,
                )
            })
            .collect();
        let amount = given[at].clone();
        for (&kid, share) in kids.iter().zip(by_fractions(&terms, &amount)) {
            given[kid] = share;
        }
    }
    given
}

/// The solver works with floats, to 1e-7. In parts of the capacity: by how much a constraint
/// that comes from a solution is relaxed, so that the next program has one; who could have no
/// more than this is full; and what that comes to in the end.
const SLACK: f64 = 1e-6;
const FULL: f64 = 5e-5;
const NEAR: f64 = 2e-4;

/// The shares of all nodes by linear programs, in parts of the capacity.
struct Programs<'a> {
    nodes: &'a [Node],
    capacity: u64,
    /// Sums of nodes that are known by now.
    known: Vec<(usize, f64)>,
}

impl Programs<'_> {
    fn services(&self, at: usize) -> Vec<usize> {
        let node = &self.nodes[at];
        if node.is_service {
            return vec![at];
        }
        node.kids
            .iter()
            .flat_map(|&kid| self.services(kid))
            .collect()
    }

    /// A weight as a part of the heaviest, so that an error of the level is one of a share.
    fn weight(&self, kid: usize, of: &[usize]) -> f64 {
        let heaviest = of.iter().map(|&kid| self.nodes[kid].weight).max();
        f64::from(self.nodes[kid].weight) / f64::from(heaviest.unwrap_or(1))
    }

    fn part(&self, rate: u64) -> f64 {
        rate as f64 / self.capacity as f64
    }

    /// A program with everything that holds anyhow, and a level of this price.
    fn program(&self, level_price: f64) -> (Problem, Vec<Option<Variable>>, Variable) {
        let mut program = Problem::new(OptimizationDirection::Maximize);
        let level = program.add_var(level_price, (0.0, f64::INFINITY));
        let variable = |node: &Node| {
            let most = node.demand.unwrap_or(self.capacity);
            let most = most.min(node.max.unwrap_or(u64::MAX));
            node.is_service
                .then(|| program.add_var(0.0, (0.0, self.part(most))))
        };
        let shares: Vec<_> = self.nodes.iter().map(variable).collect();
        let sum = |at: usize| -> Vec<(Variable, f64)> {
            let services = self.services(at).into_iter();
            services.filter_map(|s| Some((shares[s]?, 1.0))).collect()
        };
        program.add_constraint(sum(0), ComparisonOp::Le, 1.0);
        for (at, node) in self.nodes.iter().enumerate() {
            if let (false, Some(max)) = (node.is_service, node.max) {
                program.add_constraint(sum(at), ComparisonOp::Le, self.part(max));
            }
        }
        for &(at, share) in &self.known {
            // Nobody takes what is another's. That it gets all of its own follows from the
            // level being as high as it goes.
            program.add_constraint(sum(at), ComparisonOp::Le, share + SLACK);
        }
        (program, shares, level)
    }

    /// The highest level at which each of `open` has its floor and its part of the level; or,
    /// with `of`, the most that this child can have when the others of `open` have theirs at
    /// `level`.
    fn solve(
        &self,
        at: usize,
        open: &[usize],
        fixed: &[(usize, f64)],
        of: Option<(usize, f64)>,
    ) -> f64 {
        let (mut program, shares, level) = self.program(if of.is_none() { 1.0 } else { 0.0 });
        let extra = of.map(|_| program.add_var(1.0, (0.0, f64::INFINITY)));
        for &kid in &self.nodes[at].kids {
            let services = self.services(kid).into_iter();
            let mut sum: Vec<(Variable, f64)> =
                services.filter_map(|s| Some((shares[s]?, 1.0))).collect();
            if let Some(&(_, share)) = fixed.iter().find(|f| f.0 == kid) {
                program.add_constraint(sum, ComparisonOp::Ge, share - SLACK);
                continue;
            }
            if !open.contains(&kid) {
                continue;
            }
            let floor = self.part(floor(self.nodes, kid, self.capacity));
            let weight = self.weight(kid, open);
            match of {
                None => {
                    sum.push((level, -weight));
                    program.add_constraint(sum, ComparisonOp::Ge, floor);
                }
                Some((one, level)) => {
                    if one == kid {
                        sum.extend(extra.map(|extra| (extra, -1.0)));
                    }
                    // A little less, so that a level within tolerance is possible.
                    let share = floor + weight * level - SLACK;
                    program.add_constraint(sum, ComparisonOp::Ge, share);
                }
            }
        }
        match program.solve().expect("floors fit") {
            SolveOutcome::Solution(solution) => solution.objective(),
            SolveOutcome::Interrupted(_) => unreachable!("there is no time limit"),
        }
    }

    /// Fixes the shares of the children of a node, and of theirs.
    fn descend(&mut self, at: usize) {
        let mut open: Vec<usize> = self.nodes[at].kids.clone();
        open.retain(|&kid| !self.services(kid).is_empty());
        let mut fixed: Vec<(usize, f64)> = Vec::new();
        while !open.is_empty() {
            let level = self.solve(at, &open, &fixed, None);
            let share = |kid: usize| {
                let floor = self.part(floor(self.nodes, kid, self.capacity));
                floor + self.weight(kid, &open) * level
            };
            let more = |kid: usize| self.solve(at, &open, &fixed, Some((kid, level)));
            let full: Vec<usize> = open
                .iter()
                .copied()
                .filter(|&kid| more(kid) < FULL)
                .collect();
            assert!(!full.is_empty(), "nobody is full at {level}");
            fixed.extend(full.iter().map(|&kid| (kid, share(kid))));
            open.retain(|kid| !full.contains(kid));
        }
        self.known.extend(fixed);
        for kid in self.nodes[at].kids.clone() {
            self.descend(kid);
        }
    }
}

/// Decides a case; returns the shares and the demands.
fn decide(case: &Case) -> (Vec<u64>, Vec<Option<u64>>) {
    let mut policy = Policy::new(case.config()).expect("a good configuration");
    let allocation = policy.decide(&case.observation());
    let grants = allocation.services.iter().map(|s| s.grants[SEND]);
    let of = |grant: bonsai_policy::Grant| (grant.share.expect("a share"), grant.demand);
    grants.map(of).unzip()
}

fn agrees_with_fractions(case: &Case) -> Result<(), TestCaseError> {
    let (shares, demands) = decide(case);
    let nodes = nodes(case, &case.config(), &demands);
    let exact = all_by_fractions(&nodes, case.capacity);
    let levels = case.groups.len() as u64 + 1;
    for (i, &share) in shares.iter().enumerate() {
        let exact = &exact[case.groups.len() + 1 + i];
        let off = if *exact > whole(share) {
            exact - whole(share)
        } else {
            whole(share) - exact
        };
        prop_assert!(
            off <= whole(levels),
            "service {i}: {share}, exactly {exact}"
        );
    }
    Ok(())
}

fn agrees_with_programs(case: &Case) -> Result<(), TestCaseError> {
    let (shares, demands) = decide(case);
    let nodes = nodes(case, &case.config(), &demands);
    let mut programs = Programs {
        nodes: &nodes,
        capacity: case.capacity,
        known: Vec::new(),
    };
    programs.descend(0);
    let levels = case.groups.len() as f64 + 1.0;
    for (at, part) in programs
        .known
        .iter()
        .filter(|known| nodes[known.0].is_service)
    {
        let share = shares[at - case.groups.len() - 1] as f64;
        let exact = part * case.capacity as f64;
        let off = (share - exact).abs();
        let near = levels + NEAR * case.capacity as f64;
        prop_assert!(off <= near, "node {at}: {share}, by programs {exact}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn flat_shares_are_those_of_exact_fractions(case in cases(0, 12)) {
        agrees_with_fractions(&case)?;
    }

    #[test]
    fn nested_shares_are_those_of_exact_fractions(case in cases(5, 12)) {
        agrees_with_fractions(&case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn flat_shares_are_those_of_linear_programs(case in cases(0, 6)) {
        agrees_with_programs(&case)?;
    }

    #[test]
    fn nested_shares_are_those_of_linear_programs(case in cases(3, 6)) {
        agrees_with_programs(&case)?;
    }
}
