// Replaces the times of a family's blocks by those of a profile.
#include <algorithm>

#include "weft/base/error.h"
#include "weft/plan/model/profile.h"
#include "weft/plan/step/internal/replica.h"

namespace weft::plan::internal {

void Replica::read_profile(Split split) {
  const Profile* const profile = job_.model.profile.get();
  if (profile == nullptr || job_.model.family == Family::kMeasured) return;
  WEFT_REQUIRE(profile->blocks.size() == blocks_.size(),
               "the profile has " + std::to_string(profile->blocks.size()) +
                   " blocks, but the model has " + std::to_string(blocks_.size()) +
                   "; profile this model (weft plan profile)");
  split.tp = split.cp = split.ep = 1;
  split.sequence_parallel = false;
  const Blocks whole = blocks_of(job_.model, split);
  const double samples = split.micro_batch;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const MeasuredBlock& measured = profile->blocks[b];
    Reference& to = references_[blocks_[b].get()];
    to.whole = whole[b];
    to.forward += seconds_for(*profile, measured.forward, samples);
    to.backward += seconds_for(*profile, measured.backward, samples);
    to.kept += whole[b]->kept_all > 0 ? measured.kept_bytes * samples / whole[b]->kept_all : 1;
    ++to.count;
  }
}

// A divided block takes as much longer than the model says as the whole block does.
void Replica::scale(BlockTime& time, const Reference& reference, const DeviceModel& device) {
  const OperatorTime whole = time_of(*reference.whole, device).all;
  const double backward = whole.backward_input + whole.backward_weight;
  const double ahead = whole.forward > 0 ? reference.forward / reference.count / whole.forward : 1;
  const double back = backward > 0 ? reference.backward / reference.count / backward : 1;
  time.all.forward *= ahead;
  time.again *= ahead;
  time.all.backward_input *= back;
  time.all.backward_weight *= back;
}

double Replica::kept_ratio(std::size_t index) const {
  const auto at = references_.find(blocks_[index].get());
  return at == references_.end() ? 1 : at->second.kept / at->second.count;
}

}  // namespace weft::plan::internal
