#include "weft/parallel/compose/internal/verification.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "weft/comm/texts.h"

namespace weft::parallel::internal {
namespace {

// Gives `mine` to the rank `shift` places on, and returns what comes from as many places before.
// Ranks of even and odd number take turns, so that no two wait for each other.
at::Tensor pass_on(const Group& group, const at::Tensor& mine, at::Tensor theirs, int shift) {
  const int size = group.size(), to = (group.rank() + shift + size) % size,
            from = (group.rank() - shift + size) % size;
  const bool sends_first = group.rank() % 2 == 0;
  if (sends_first) group.send(mine, to);
  group.recv(theirs, from);
  if (!sends_first) group.send(mine, to);
  return theirs;
}

// A tensor whose shape and type the other rank does not know.
at::Tensor pass_on(const Group& group, const at::Tensor& mine, int shift) {
  constexpr std::int64_t kMaxDims = 16;
  at::Tensor about = at::full({kMaxDims + 2}, -1, at::kLong);
  auto* const numbers = about.data_ptr<std::int64_t>();
  WEFT_REQUIRE(mine.dim() <= kMaxDims, "verify: a batch has a tensor of more than 16 dimensions");
  numbers[0] = static_cast<std::int64_t>(mine.scalar_type());
  numbers[1] = mine.dim();
  std::copy(mine.sizes().begin(), mine.sizes().end(), numbers + 2);
  about = pass_on(group, about, at::empty_like(about), shift);
  const auto* const theirs = about.const_data_ptr<std::int64_t>();
  const at::Tensor into =
      at::empty(at::IntArrayRef(theirs + 2, static_cast<std::size_t>(theirs[1])),
                static_cast<at::ScalarType>(theirs[0]));
  return pass_on(group, mine.contiguous(), into, shift);
}

Tensors pass_on(const Group& group, const Tensors& mine, int shift) {
  Tensors theirs;
  for (const at::Tensor& tensor : mine) theirs.push_back(pass_on(group, tensor, shift));
  return theirs;
}

Checksums pass_on(const Group& group, const Checksums& mine, int shift) {
  at::Tensor sent = at::empty({static_cast<std::int64_t>(mine.size())}, at::kInt);
  std::memcpy(sent.data_ptr(), mine.data(), sent.nbytes());
  const at::Tensor got = pass_on(group, sent, at::empty_like(sent), shift);
  Checksums theirs(mine.size());
  std::memcpy(theirs.data(), got.const_data_ptr(), got.nbytes());
  return theirs;
}

}  // namespace

int first_difference(const Checksums& a, const Checksums& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return at == a.end() ? -1 : static_cast<int>(at - a.begin());
}

Wrong who_is_wrong(const Computed& c) {
  if (c.owner == c.checker) return Wrong::kNobody;
  const bool owner_changes = c.owner != c.owner_again,
             checker_changes = c.checker != c.checker_again;
  if (owner_changes != checker_changes) return owner_changes ? Wrong::kOwner : Wrong::kChecker;
  if (owner_changes || c.third.empty()) return Wrong::kEither;
  if (c.third == c.checker) return Wrong::kOwner;
  return c.third == c.owner ? Wrong::kChecker : Wrong::kEither;
}

void Verifier::begin(const Tensors& inputs, const Tensors& targets, Seed seed) {
  const auto refuse = [](const std::string& why) {
    throw Error(Errc::kBadConfig, "verify: " + why);
  };
  if (c_.replicas().size() < 2)
    refuse("there is one replica, and no other rank that could compare");
  if (c_.plan.micro_shards > 0) refuse("not supported with micro-shards (train.reproducible)");
  if (c_.model.experts > 0 || c_.plan.sync_batch_norm)
    refuse(
        "not supported with experts and synchronized batch norms, where the gradients of a rank "
        "depend on the batches of all");
  if (!c_.skips()) refuse("needs skip_not_finite, and no update_in_backward");
  c_.guarded([&] {
    step_.emplace();
    step_->inputs = inputs;
    step_->targets = targets;
    step_->next_inputs = pass_on(c_.replicas(), inputs, -1);
    step_->next_targets = pass_on(c_.replicas(), targets, -1);
    step_->seed = std::move(seed);
    step_->next = compute(step_->next_inputs, step_->next_targets, 1);
    for (Stage& stage : c_.stages) {
      if (stage.check) stage.check->record(true);
    }
    step_->seed(c_.replica());
  });
}

Checksums Verifier::compute(const Tensors& inputs, const Tensors& targets, int shift) {
  step_->seed((c_.replica() + shift) % c_.replicas().size());
  return compute_(inputs, targets, shift);
}

Checksums Verifier::own_checksums() {
  Checksums own;
  for (Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    own.insert(own.end(), stage.check->seen().begin(), stage.check->seen().end());
    stage.check->record(false);
  }
  return own;
}

// True if no replica disagrees with the one that has checked it.
bool Verifier::agree() {
  wrong_.clear();
  if (!step_) return true;
  step_->own = own_checksums();
  const Checksums theirs = pass_on(c_.replicas(), step_->own, -1);
  return comm::holds_on_all(c_.mesh.world(), theirs == step_->next);
}

// Computes again, after the step was skipped, and names the ranks in wrong().
void Verifier::find_wrong() {
  const Group& group = c_.replicas();
  const int size = group.size();
  const Step& v = *step_;
  Computed next;
  next.owner = pass_on(group, v.own, -1);
  next.checker = v.next;
  next.owner_again = pass_on(group, compute(v.inputs, v.targets, 0), -1);
  next.checker_again = compute(v.next_inputs, v.next_targets, 1);
  if (size > 2) {
    const Tensors inputs = pass_on(group, v.next_inputs, -1),
                  targets = pass_on(group, v.next_targets, -1);
    next.third = pass_on(group, compute(inputs, targets, 2), 1);
  }
  const std::vector<int> ranks =
      c_.mesh.layout().members_in_order(c_.mesh.world().rank(), {"dp", "fsdp", "ep"});
  const auto name = [&](int place) {
    return std::to_string(ranks[static_cast<std::size_t>(place % size)]);
  };
  const std::string checker = name(group.rank()), owner = name(group.rank() + 1);
  const Wrong wrong = who_is_wrong(next);
  std::string text = wrong == Wrong::kOwner     ? owner
                     : wrong == Wrong::kChecker ? checker
                     : wrong == Wrong::kEither  ? checker + " " + owner
                                                : "";
  if (!text.empty()) text += "\t" + parameter_at(first_difference(next.owner, next.checker));
  for (const std::string& one : comm::all_gather_texts(c_.mesh.world(), text)) {
    if (one.empty()) continue;
    std::istringstream numbers(one.substr(0, one.find('\t')));
    ParallelModel::WrongGradient found{{}, one.substr(one.find('\t') + 1)};
    for (int rank = 0; numbers >> rank;) found.ranks.push_back(rank);
    std::sort(found.ranks.begin(), found.ranks.end());
    const auto same = [&](const auto& known) { return known.ranks == found.ranks; };
    if (std::none_of(wrong_.begin(), wrong_.end(), same)) wrong_.push_back(std::move(found));
  }
}

// Name in the whole model of a parameter of the checksums.
std::string Verifier::parameter_at(int place) const {
  for (const Stage& stage : c_.stages) {
    if (!stage.sharded) continue;
    const auto& names = stage.check->names();
    if (place < static_cast<int>(names.size()))
      return stage.find(names[static_cast<std::size_t>(place)])->whole;
    place -= static_cast<int>(names.size());
  }
  return "";
}

}  // namespace weft::parallel::internal
