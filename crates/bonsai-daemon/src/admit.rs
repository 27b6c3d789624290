//! Whether more streams fit: the question and the answer in the interface's words.

use bonsai_api::{Admission, AdmitRequest, Give, Problem, Share};
use bonsai_policy::{Gives, Policy, Request};
use bonsai_units::{Rate, Resource};

use crate::picture::per_s;
use crate::problems::bad_input;

/// Asks the policy.
pub(crate) fn admit(
    policy: &Policy,
    wall_s: u64,
    request: &AdmitRequest,
) -> Result<Admission, Problem> {
    let resource: Resource = request.resource.map_or(Resource::Send, Into::into);
    let rate = match request.rate {
        Share::Rate(rate) | Share::Bits(rate) if rate.unit() == resource.unit() => rate.milli(),
        other => {
            let text =
                format!("rate: {other} is no rate of {resource}: write it as 2Mbit/s or 100/s");
            return Err(bad_input(text));
        }
    };
    let answer = policy.admit(&Request {
        service: Some(request.service.as_str().into()),
        class: None,
        resource,
        streams: request.streams,
        rate,
        peak: None,
        confidence: None,
        wall_s,
    });
    let answer = answer.map_err(|error| bad_input(error.to_string()))?;
    let said = |milli: u64| match milli {
        0 => "nothing".to_owned(),
        milli => resource.for_people(Rate::from_milli(milli, resource.unit())),
    };
    let reason = if answer.admitted {
        format!(
            "{} are needed, its guarantee has to grow by {}, and {} can be guaranteed",
            said(answer.needed),
            said(answer.guarantee),
            said(answer.guarantee_free)
        )
    } else {
        format!(
            "{} are needed: its guarantee would have to grow by {}, and only {} can be guaranteed",
            said(answer.needed),
            said(answer.guarantee),
            said(answer.guarantee_free)
        )
    };
    let give = answer.givers.iter().map(|giver| Give {
        service: giver.service.to_string(),
        amount: per_s(giver.rate),
        reason: match giver.gives {
            Gives::Borrowed => "it uses that beyond its guarantee",
            Gives::Learned => "that is guaranteed to it beyond what is configured",
            Gives::Guarantee => "that is guaranteed to it",
        }
        .to_owned(),
    });
    Ok(Admission {
        admitted: answer.admitted,
        probability: answer.probability,
        free: per_s(answer.free),
        needed: per_s(answer.needed),
        reason,
        give: give.collect(),
    })
}
