#include "weft/ps/internal/workers.h"

#include <algorithm>
#include <utility>

namespace weft::ps::internal {

Answer Workers::check(const Request& request) const {
  const auto worker = workers_.find(request.worker);
  const std::string name = "worker " + std::to_string(request.worker);
  if (worker == workers_.end()) return invalid(name + " has not joined; call join() first");
  if (worker->second.client != request.client)
    return refuse(Errc::kAborted, name + " has joined again from another process; this one ends");
  if (!worker->second.counts)
    return refuse(Errc::kAborted,
                  name +
                      " does not count any more: it left, or the server lost its connection; "
                      "call join() again");
  return {};
}

bool Workers::counts(std::uint32_t number, std::uint64_t client) const {
  const auto worker = workers_.find(number);
  return worker != workers_.end() && worker->second.counts && worker->second.client == client;
}

std::map<std::uint32_t, std::uint64_t> Workers::counting() const {
  std::map<std::uint32_t, std::uint64_t> all;
  for (const auto& [number, worker] : workers_) {
    if (worker.counts) all.emplace(number, worker.client);
  }
  return all;
}

std::int64_t Workers::clock(std::uint32_t number) const {
  const auto worker = workers_.find(number);
  return worker == workers_.end() ? 0 : worker->second.clock;
}

std::optional<std::int64_t> Workers::slowest(std::uint32_t without) const {
  std::optional<std::int64_t> least;
  for (const auto& [number, worker] : workers_) {
    if (worker.counts && number != without && (!least || worker.clock < *least))
      least = worker.clock;
  }
  return least;
}

bool Workers::may_pull(const Request& pull, std::int64_t staleness) const {
  if (!counts(pull.worker, pull.client)) return true;  // is refused, if it is a worker
  return slowest().value_or(0) >= clock(pull.worker) - staleness;
}

std::span<float> Workers::pulled(std::uint32_t number) {
  const auto worker = workers_.find(number);
  return worker == workers_.end() ? std::span<float>{} : std::span(worker->second.pulled);
}

std::uint64_t Workers::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [number, worker] : workers_) bytes += sizeof(float) * worker.pulled.size();
  return bytes;
}

void Workers::join(const Request& command, std::int64_t clock, std::vector<float> pulled) {
  workers_[command.worker] = {command.client, clock, true, std::move(pulled), {}};
}

bool Workers::leave(std::uint32_t number, std::uint64_t client) {
  if (!counts(number, client)) return false;
  Worker& worker = workers_.at(number);
  last_clock_ = std::max(last_clock_, worker.clock);
  worker.counts = false;
  worker.pulled = {};
  worker.encoded = {};
  return true;
}

void Workers::put(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(workers_.size()));
  for (const auto& [number, worker] : workers_) {
    out.put(number);
    out.put(worker.client);
    out.put(worker.clock);
    out.put<std::uint8_t>(worker.counts);
    put_floats(out, worker.pulled);
    out.put(static_cast<std::uint32_t>(worker.encoded.size()));
    for (const std::uint32_t count : worker.encoded) out.put(count);
  }
}

Workers Workers::taken(ByteReader& in) {
  Workers workers;
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    Worker& worker = workers.workers_[in.take<std::uint32_t>()];
    worker.client = in.take<std::uint64_t>();
    worker.clock = in.take<std::int64_t>();
    worker.counts = in.take<std::uint8_t>() != 0;
    worker.pulled = take_floats(in);
    worker.encoded.resize(in.take_count(sizeof(std::uint32_t)));
    for (std::uint32_t& count : worker.encoded) count = in.take<std::uint32_t>();
  }
  return workers;
}

bool Workers::fits(std::size_t values, bool kept) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const auto& one) {
    const Worker& worker = one.second;
    return worker.pulled.empty() ? !worker.counts || !kept : worker.pulled.size() == values;
  });
}

}  // namespace weft::ps::internal
