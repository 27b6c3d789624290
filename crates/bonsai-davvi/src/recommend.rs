//! Recommendations, by what events have in common with those that were watched.
//!
//! Events are compared by their fields (type, players, card, team, ...): content-based filtering, for a
//! library has one viewer, of whom nothing follows from what others watched.
//!
//! A field's *part* is the part of watched events that have it; its *weight* is ln(1 + events / events that
//! have it), so that what all events have says little (inverse document frequency). The score of an event
//! that was not watched is the sum of part * weight over its fields, over the square root of how many
//! fields it has, so that an event does not win by having many.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::index::{Hit, Index};
use crate::{Error, Library, Name};

/// An event that may be liked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommended {
    /// Which; its score is that of the recommendation.
    #[serde(flatten)]
    pub hit: Hit,
    /// What it has in common with what was watched, most telling first, as `field=value`.
    pub because: Vec<String>,
}

/// A field, and its value.
type Feature = (String, String);

/// The events of a library by their fields.
struct Events {
    /// Video (its id and its name) and place of each event.
    places: HashMap<i64, (String, String, u32)>,
    features: BTreeMap<i64, Vec<Feature>>,
}

impl Library {
    /// Up to so many events that have most in common with those that were watched.
    ///
    /// # Errors
    /// Nothing of what is in the library was watched, or it cannot be read.
    pub fn recommend(&self, most: usize) -> Result<Vec<Recommended>, Error> {
        let watched: HashSet<(String, u32)> = self.watched_events()?.into_iter().collect();
        let index = Index::open(self, &mut self.list()?)?;
        let events = Events::read(&index)?;
        let scores = events.scores(&watched);
        if scores.is_none() {
            return Err(Error::input(
                "nothing was watched that recommendations could follow from: bonsai davvi watched notes it",
            ));
        }
        let mut recommended = Vec::new();
        for (event, score, because) in scores.into_iter().flatten().take(most) {
            let Some((_, name, place)) = events.places.get(&event) else {
                continue;
            };
            if let Some(hit) = index.event(&Name::parse(name)?, *place)? {
                let hit = Hit { score, ..hit };
                recommended.push(Recommended { hit, because });
            }
        }
        Ok(recommended)
    }
}

impl Events {
    fn read(index: &Index) -> Result<Self, Error> {
        let failed = Error::database(index.path());
        let mut places = HashMap::new();
        let sql = "SELECT event.number, video.id, video.name, event.place
                   FROM event JOIN video ON video.number = event.video";
        let mut statement = index.connection.prepare(sql).map_err(&failed)?;
        let rows = statement.query_map([], |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
        });
        for row in rows.map_err(&failed)? {
            let (event, place) = row.map_err(&failed)?;
            places.insert(event, place);
        }
        let mut features: BTreeMap<i64, Vec<Feature>> = BTreeMap::new();
        let sql = "SELECT event, name, value FROM field";
        let mut statement = index.connection.prepare(sql).map_err(&failed)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))));
        for row in rows.map_err(&failed)? {
            let (event, feature) = row.map_err(&failed)?;
            features.entry(event).or_default().push(feature);
        }
        Ok(Self { places, features })
    }

    /// Those with anything in common with what was watched, best first; `None` if nothing was watched.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn scores(&self, watched: &HashSet<(String, u32)>) -> Option<Vec<(i64, f64, Vec<String>)>> {
        let is_watched = |event: &i64| {
            let place = self.places.get(event);
            place.is_some_and(|(id, _, place)| watched.contains(&(id.clone(), *place)))
        };
        let mut have: HashMap<&Feature, (usize, usize)> = HashMap::new();
        let mut count = 0;
        for (event, features) in &self.features {
            let of_watched = usize::from(is_watched(event));
            count += of_watched;
            for feature in features {
                let counts = have.entry(feature).or_default();
                counts.0 += 1;
                counts.1 += of_watched;
            }
        }
        if count == 0 {
            return None;
        }
        let all = self.features.len() as f64;
        let value = |feature: &Feature| {
            let (events, of_watched) = have.get(feature).copied().unwrap_or((1, 0));
            of_watched as f64 / count as f64 * (all / events as f64).ln_1p()
        };
        let mut scores = Vec::new();
        for (event, features) in self.features.iter().filter(|(event, _)| !is_watched(event)) {
            let mut shared: Vec<(f64, &Feature)> = features
                .iter()
                .map(|feature| (value(feature), feature))
                .collect();
            shared.retain(|(value, _)| *value > 0.0);
            shared.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
            let score =
                shared.iter().map(|(value, _)| value).sum::<f64>() / (features.len() as f64).sqrt();
            if score > 0.0 {
                let because = shared
                    .iter()
                    .map(|(_, (name, value))| format!("{name}={value}"));
                scores.push((*event, score, because.collect()));
            }
        }
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Some(scores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(all: &[&[(&str, &str)]]) -> Events {
        let mut events = Events {
            places: HashMap::new(),
            features: BTreeMap::new(),
        };
        for (number, features) in (0_u32..).zip(all) {
            events
                .places
                .insert(number.into(), ("id".to_owned(), "a".to_owned(), number));
            let features = features
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            events.features.insert(number.into(), features.collect());
        }
        events
    }

    #[test]
    fn what_is_rare_and_shared_is_recommended_first() {
        let events = events(&[
            &[("type", "goal"), ("player", "8")],
            &[("type", "goal"), ("player", "9")],
            &[("type", "throw-in"), ("player", "8")],
            &[("type", "throw-in"), ("player", "3")],
            &[("type", "goal"), ("player", "8"), ("card", "none")],
            &[("type", "goal"), ("player", "4")],
        ]);
        let watched = HashSet::from([("id".to_owned(), 0)]);
        let scores = events.scores(&watched).expect("something was watched");
        let order: Vec<i64> = scores.iter().map(|score| score.0).collect();
        // Both fields, then the rarer of the two, then the other; a throw-in of somebody else never.
        assert_eq!(order, [4, 2, 1, 5]);
        assert_eq!(scores[0].2, ["player=8", "type=goal"]);
        assert_eq!(events.scores(&HashSet::new()), None);
    }
}
