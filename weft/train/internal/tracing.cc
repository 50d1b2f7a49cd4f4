#include "weft/train/internal/tracing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/texts.h"
#include "weft/train/options.h"

namespace weft::train::internal {
namespace {

constexpr int kExchanges = 20;
constexpr int kClockTag = 0x636c6f;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Logs how much communication was hidden behind compute on rank 0.
void report(const std::vector<observe::Span>& spans, std::int64_t steps) {
  const auto ms = [&](std::int64_t ns) {
    return std::round(static_cast<double>(ns) / static_cast<double>(steps) / 1e4) / 100;
  };
  const auto moving = observe::busy(spans, "comm");
  log_info("trace, in ms per step",
           {{"whole", ms(observe::busy(spans, "step"))},
            {"communication", ms(moving)},
            {"hidden", ms(moving - observe::busy_in_both(spans, "comm", "wait"))},
            {"waiting", ms(observe::busy(spans, "wait"))},
            {"update", ms(observe::busy(spans, "update"))},
            {"making_batches", ms(observe::busy(spans, "data"))}});
}

}  // namespace

TraceSteps parse_trace(const std::string& text) {
  TraceSteps steps;
  long long first = 0, last = 0;
  int used = 0;
  const bool read = std::sscanf(text.c_str(), "steps=%lld:%lld%n", &first, &last, &used) == 2 &&
                    static_cast<std::size_t>(used) == text.size();
  WEFT_REQUIRE(
      read && first >= 1 && last >= first && last - first < 1000,
      "--trace " + text +
          ": expected steps=FIRST:LAST, counted from 1, at most 1000 of them, such as steps=10:15");
  steps.first = first;
  steps.last = last;
  return steps;
}

void Tracing::start(std::int64_t step, bool tells) {
  begun_ = trained_ = step;
  if (steps_.first == 0 || step < steps_.last) return;
  if (tells && world_.rank() == 0) {
    log_warn("training goes on after step " + std::to_string(step) + ", so no step of " + text() +
             " is left for a time line");
  }
  steps_ = {};
}

void Tracing::tell_of_none() const {
  if (world_.rank() != 0) return;
  log_warn("training ended before the first step of " + text() + ", so there is no time line");
}

std::int64_t offset_to_rank0(const Group& world) {
  if (world.size() == 1 || world.host() != nullptr) return 0;
  at::Tensor clock = at::zeros({1}, at::kLong);
  auto* const time = clock.data_ptr<std::int64_t>();
  if (world.rank() == 0) {
    for (int peer = 1; peer < world.size(); ++peer) {
      for (int i = 0; i < kExchanges; ++i) {
        world.recv(clock, peer, kClockTag);
        *time = observe::trace_now();
        world.send(clock, peer, kClockTag);
      }
    }
    return 0;
  }
  std::vector<observe::ClockSample> samples;
  for (int i = 0; i < kExchanges; ++i) {
    observe::ClockSample sample;
    sample.asked = observe::trace_now();
    world.send(clock, 0, kClockTag);
    world.recv(clock, 0, kClockTag);
    sample.answered = observe::trace_now();
    sample.theirs = *time;
    samples.push_back(sample);
  }
  return observe::clock_offset(samples);
}

void Tracing::write() {
  trace_.record(false);
  const auto recorded = trace_.take();
  observe::TraceTarget target{world_.rank(), host_name(), offset_to_rank0(world_), 0};
  std::int64_t first = recorded.spans.empty() ? 0 : recorded.spans.front().begin;
  for (const auto& span : recorded.spans) first = std::min(first, span.begin);
  at::Tensor origin = at::zeros({1}, at::kLong);
  origin.data_ptr<std::int64_t>()[0] = first + target.offset;
  world_.all_reduce(origin, ReduceOp::kMin);
  target.origin = origin.item<std::int64_t>();
  const auto texts = comm::gather_texts(world_, observe::trace_events(recorded, target));
  if (world_.rank() != 0) return;
  write_file_atomic(file_, observe::chrome_trace(texts));
  std::int64_t steps = 0;
  for (const auto& span : recorded.spans) steps += span.category == "step" ? 1 : 0;
  report(recorded.spans, std::max<std::int64_t>(1, steps));
  log_info("time line written; open it in chrome://tracing or ui.perfetto.dev", {{"file", file_}});
}

}  // namespace weft::train::internal

namespace weft::train {

void check_trace(const std::string& trace) { internal::parse_trace(trace); }

}  // namespace weft::train
