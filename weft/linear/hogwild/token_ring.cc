#include "weft/linear/hogwild/token_ring.h"

#include <array>
#include <cmath>

#include "weft/base/error.h"
#include "weft/linear/hogwild/internal/relaxed.h"

namespace weft::linear {
namespace {

using internal::load;
using internal::store;

// First number of a kToken or kChange message.
constexpr float kUsual = 0, kLast = 1;

}  // namespace

Mixing mixing(int clusters) {
  WEFT_CHECK(clusters >= 2, "a ring of one cluster");
  double low = 0.5, high = 1;  // β^C + β grows, is below 1 at 0.5 and 2 at 1
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double beta = (low + high) / 2;
    (std::pow(beta, clusters) + beta > 1 ? high : low) = beta;
  }
  return {static_cast<float>(low), static_cast<float>(1 - std::pow(low, clusters - 1))};
}

void exchange(std::span<float> w, std::span<float> snapshot, std::span<float> next,
              const Mixing& mixing) {
  const float beta = mixing.beta, lambda = mixing.lambda;
  for (std::size_t j = 0; j < w.size(); ++j) {
    const float mine = load(w[j]), change = mine - snapshot[j], theirs = load(next[j]);
    store(next[j], theirs + beta * change);
    const float mixed = lambda * theirs + (1 - lambda) * mine + (beta + lambda - 1) * change;
    store(w[j], mixed);
    snapshot[j] = mixed;
  }
}

RingMember::RingMember(RingMessages& messages, std::span<float> w, int host, int hosts,
                       std::int64_t rows)
    : messages_(messages),
      w_(w),
      snapshot_(w.begin(), w.end()),
      sent_w_(w.size()),
      change_(w.size() + 1),
      mixing_(mixing(hosts)),
      rows_(rows),
      has_token_(host == 0) {}

void RingMember::poll(std::int64_t rows) {
  answer();
  take_token();
  if (awaits_answer_) {
    if (const auto theirs = messages_.receive(RingMessages::kAnswer)) end(*theirs);
  } else if (has_token_ && !exchanged_) {
    begin();
  } else if (has_token_ && (left_ -= rows) <= 0) {
    has_token_ = exchanged_ = false;
    messages_.send(RingMessages::kToken, std::array{kUsual});
  }
}

void RingMember::take_token() {
  if (last_token_) return;
  const auto token = messages_.receive(RingMessages::kToken);
  if (token) (token->front() == kLast ? last_token_ : has_token_) = true;
}

// Takes the previous host's change, and answers with the weights before it.
void RingMember::answer() {
  if (last_change_) return;
  const auto message = messages_.receive(RingMessages::kChange);
  if (!message) return;
  if (message->front() == kLast) {
    last_change_ = true;
    return;
  }
  const auto change = message->subspan(1);
  std::vector<float> before(w_.size());
  for (std::size_t j = 0; j < w_.size(); ++j) {
    before[j] = load(w_[j]);
    store(w_[j], before[j] + mixing_.beta * change[j]);
  }
  messages_.send(RingMessages::kAnswer, before);
}

void RingMember::begin() {
  change_[0] = kUsual;
  for (std::size_t j = 0; j < w_.size(); ++j) {
    sent_w_[j] = load(w_[j]);
    change_[j + 1] = sent_w_[j] - snapshot_[j];
  }
  messages_.send(RingMessages::kChange, change_);
  awaits_answer_ = true;
}

// Mixes with the weights as they were when the change was sent, and keeps what was added since.
void RingMember::end(std::span<const float> next) {
  const float beta = mixing_.beta, lambda = mixing_.lambda;
  for (std::size_t j = 0; j < w_.size(); ++j) {
    const float mixed =
        lambda * next[j] + (1 - lambda) * sent_w_[j] + (beta + lambda - 1) * change_[j + 1];
    store(w_[j], load(w_[j]) + (mixed - sent_w_[j]));
    snapshot_[j] = mixed;
  }
  awaits_answer_ = false;
  exchanged_ = true;
  left_ = rows_;
}

void RingMember::finish() {
  while (awaits_answer_) {
    answer();
    if (const auto theirs = messages_.receive(RingMessages::kAnswer))
      end(*theirs);
    else
      messages_.wait();
  }
  change_[0] = kLast;
  messages_.send(RingMessages::kToken, std::array{kLast});
  messages_.send(RingMessages::kChange, change_);
  while (!last_token_ || !last_change_) {
    answer();
    take_token();
    if (!last_token_ || !last_change_) messages_.wait();
  }
}

}  // namespace weft::linear
