#include "weft/ps/internal/shard.h"

#include <algorithm>
#include <cstring>

#include "weft/compress/spec.h"

namespace weft::ps::internal {
namespace {

std::string named(const Definition::Part& part) {
  return part.name + "[" + std::to_string(part.first) + " to " +
         std::to_string(part.first + part.count) + ")";
}

std::string difference(const std::vector<TableSpec>& known, const std::vector<TableSpec>& given) {
  for (std::size_t i = 0; i < std::min(known.size(), given.size()); ++i) {
    if (known[i] == given[i]) continue;
    if (known[i].name != given[i].name)
      return "it has the table " + given[i].name + " where the server has " + known[i].name;
    if (known[i].row_floats != given[i].row_floats)
      return "table " + given[i].name + " has rows of " + std::to_string(given[i].row_floats) +
             " floats, and on the server " + std::to_string(known[i].row_floats);
    return "table " + given[i].name + " has other options";
  }
  if (known.size() == given.size()) return "";
  return "it has " + std::to_string(given.size()) + " tables, and the server " +
         std::to_string(known.size());
}

// What differs between the definition of a worker and that of the first one; "" if nothing.
std::string difference(const std::vector<Definition::Part>& known,
                       const std::vector<TableSpec>& tables, const Definition& given) {
  if (known == given.parts) return difference(tables, given.tables);
  for (std::size_t i = 0; i < std::min(known.size(), given.parts.size()); ++i) {
    if (known[i] == given.parts[i]) continue;
    return "it has " + named(given.parts[i]) + " where the server has " + named(known[i]);
  }
  return "it has " + std::to_string(given.parts.size()) +
         " tensors in this shard, and the server " + std::to_string(known.size());
}

Answer refusal_in(std::string_view bytes) {
  try {
    const Answer given = decode_answer(bytes);
    return refuse(given.code, given.text);
  } catch (const Error&) {
    return invalid("a refusal is malformed");
  }
}

}  // namespace

Shard::Shard(std::uint64_t memory_bytes, bool remembers, TableFiles files)
    : memory_bytes_(memory_bytes), remembers_(remembers), files_(std::move(files)) {}

bool Shard::has_applied(std::uint64_t client, std::uint64_t sequence) const {
  const auto known = clients_.find(client);
  return sequence <= (known == clients_.end() ? 0 : known->second.last);
}

Shard::Turn Shard::turn(const Request& command) const {
  if (has_applied(command.client, command.sequence))
    return remembers_ ? Turn::kRepeated : Turn::kNext;
  return has_applied(command.client, command.sequence - 1) ? Turn::kNext : Turn::kEarly;
}

Answer Shard::answered(const Request& command) const {
  const Client& client = clients_.at(command.client);
  const auto answer = client.answers.find(command.sequence);
  // The client has said that it has this answer, so it does not wait for it.
  Answer found = answer == client.answers.end() ? Answer{} : answer->second;
  found.id = command.id;
  return found;
}

Answer Shard::apply(const Request& command) {
  Answer answer = change(command);
  answer.version = version_;
  const auto worker = workers_.find(command.worker);
  answer.clock = worker == workers_.end() ? 0 : worker->second.clock;
  answer.id = command.id;
  if (command.op == Op::kDrop || command.op == Op::kMark) return answer;
  Client& client = clients_[command.client];
  client.last = std::max(client.last, command.sequence);
  client.answers.erase(client.answers.begin(), client.answers.upper_bound(command.done));
  Answer kept = answer;
  kept.id = 0;  // a repeated command may have another number
  client.answers[command.sequence] = std::move(kept);
  return answer;
}

Answer Shard::change(const Request& command) {
  if (command.op == Op::kRefuse) return refusal_in(command.payload);
  if (command.op == Op::kDefine) return define(command);
  if (!is_defined_) return invalid("the parameter server has no tensors yet; call define() first");
  switch (command.op) {
    case Op::kJoin: return join(command);
    case Op::kLeave:
    case Op::kDrop: return leave(command.worker, command.client);
    case Op::kMark: return mark(command);
    case Op::kPush: return push(command);
    case Op::kLoad: return load(command);
    case Op::kPushRows: return push_rows(command);
    case Op::kEvict: return evict(command);
    case Op::kPullDelta: return pull_delta(command);
    default: return invalid("this request is not a command");
  }
}

Answer Shard::define(const Request& command) {
  Definition given;
  try {
    given = decode_definition(command.payload);
  } catch (const Error& error) {
    return refuse(error.code(), "the definition of the tensors is malformed");
  }
  std::int64_t count = 0;
  for (const Definition::Part& part : given.parts) {
    if (part.count < 0 || part.first < 0) return invalid("a tensor has a negative size");
    if (static_cast<std::uint64_t>(part.count) > given.values.size())
      return invalid("tensor " + part.name + " has fewer values than its size");
    count += part.count;
  }
  if (is_defined_) {
    std::vector<Definition::Part> known;
    for (const Slot& slot : slots_) known.push_back({slot.name, slot.first, slot.count});
    if (const std::string what = difference(known, tables_.specs(), given); !what.empty())
      return invalid("the definition of this worker differs from that of the first one: " + what);
    if (!(given.options == options_))
      return invalid("the options of this worker differ from those of the first one");
    return {};
  }
  if (given.values.size() != sizeof(float) * static_cast<std::size_t>(count))
    return invalid("the definition has " + std::to_string(given.values.size()) + " bytes for " +
                   std::to_string(count) + " values of float32");
  try {
    check(given.options);
    std::set<std::string> names;
    for (const TableSpec& table : given.tables) {
      check(table);
      WEFT_REQUIRE(names.insert(table.name).second, "table " + table.name + " is defined twice");
    }
  } catch (const Error& error) {
    return refuse(error.code(), error.message());
  }
  const std::size_t states =
      given.options.rule ? optim::state_names(*given.options.rule).size() : 0;
  const std::size_t arrays = 1 + states + (given.options.adaptive_compensation ? 1 : 0);
  const std::uint64_t bytes = arrays * given.values.size();
  if (!has_room(bytes)) return full("these tensors, with their optimizer state,", bytes);
  Tables tables(given.tables, files_);
  if (!has_room(bytes + tables.memory_bytes()))
    return full("these tensors and empty tables", bytes + tables.memory_bytes());

  tables_ = std::move(tables);
  options_ = given.options;
  std::int64_t offset = 0;
  for (const Definition::Part& part : given.parts) {
    slots_.push_back({part.name, part.first, part.count, offset});
    offset += part.count;
  }
  values_.resize(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values_.data(), given.values.data(), given.values.size());
  states_.assign(states, std::vector<float>(values_.size()));
  if (options_.adaptive_compensation) mean_square_.assign(values_.size(), 0);
  used_bytes_ += bytes;
  is_defined_ = true;
  make_codecs();
  return {};
}

void Shard::make_codecs() {
  push_codec_ = codec_of(options_.push_codec);
  (options_.pull_deltas ? delta_codec_ : pull_codec_) = codec_of(options_.pull_codec);
  push_seed_ = compress::parse(options_.push_codec).seed;
  delta_seed_ = compress::parse(options_.pull_codec).seed;
}

std::uint64_t Shard::worker_bytes() const {
  const bool keeps = options_.delay_compensation > 0 || options_.pull_deltas;
  return keeps ? sizeof(float) * values_.size() : 0;
}

Answer Shard::full(const std::string& what, std::uint64_t bytes) const {
  const auto mb = [](std::uint64_t count) { return std::to_string((count + 999'999) / 1'000'000); };
  return refuse(Errc::kUnavailable,
                "the parameter server is full: " + what + " would take " + mb(bytes) +
                    " MB beside " + mb(memory_in_use()) + " MB in use, and memory_mb is " +
                    std::to_string(memory_bytes_ / 1'000'000) +
                    "; nothing was changed. Raise memory_mb or use more servers");
}

std::optional<std::int64_t> Shard::slowest() const {
  std::optional<std::int64_t> least;
  for (const auto& [number, worker] : workers_) {
    if (worker.counts && (!least || worker.clock < *least)) least = worker.clock;
  }
  return least;
}

Answer Shard::join(const Request& command) {
  if (command.worker == kNoWorker) return invalid("a worker needs a number to join");
  Worker& worker = workers_[command.worker];
  const bool had_values = !worker.pulled.empty();
  if (worker.counts && worker.client == command.client) {
    drop_unfinished_rows(command.worker);  // it begins its step again
    return {};
  }
  if (!had_values && !has_room(worker_bytes())) {
    if (!worker.counts && worker.client == 0) workers_.erase(command.worker);
    return full("the values that worker " + std::to_string(command.worker) + " pulls",
                worker_bytes());
  }
  drop_unfinished_rows(command.worker);
  worker.counts = false;  // a worker that was started again does not hold itself up
  const std::int64_t clock = slowest().value_or(last_clock_);
  // A push that this worker has made for a later step stays in its place.
  std::int64_t next = clock;
  while (rounds_.contains(next) && rounds_.at(next).contains(command.worker)) ++next;
  if (!had_values) used_bytes_ += worker_bytes();
  worker.client = command.client;
  worker.clock = next;
  worker.counts = true;
  if (worker_bytes() > 0) worker.pulled = values_;
  finish_rounds();
  return {};
}

Answer Shard::leave(std::uint32_t number, std::uint64_t client) {
  const auto worker = workers_.find(number);
  // One that has joined again from another process stays.
  if (worker == workers_.end() || worker->second.client != client || !worker->second.counts)
    return {};
  last_clock_ = std::max(last_clock_, worker->second.clock);
  worker->second.counts = false;
  if (!worker->second.pulled.empty()) used_bytes_ -= worker_bytes();
  worker->second.pulled = {};
  drop_unfinished_rows(number);
  finish_rounds();
  return {};
}

Answer Shard::mark(const Request& command) {
  const auto worker = workers_.find(command.worker);
  if (worker == workers_.end() || worker->second.pulled.empty()) return {};
  for (const std::uint32_t key : keys_of(command)) {
    const Slot& slot = slots_[key];
    std::copy_n(values_.begin() + slot.offset, slot.count,
                worker->second.pulled.begin() + slot.offset);
  }
  return {};
}

std::map<std::uint32_t, std::uint64_t> Shard::workers() const {
  std::map<std::uint32_t, std::uint64_t> all;
  for (const auto& [number, worker] : workers_) {
    if (worker.counts) all.emplace(number, worker.client);
  }
  return all;
}

ShardStats Shard::stats() const {
  ShardStats stats;
  stats.staleness = staleness_;
  stats.updates = version_;
  stats.memory_bytes = memory_in_use();
  stats.file_bytes = tables_.file_bytes();
  stats.rows = tables_.rows();
  stats.workers = static_cast<std::uint32_t>(workers().size());
  return stats;
}

std::vector<std::uint32_t> Shard::keys_of(const Request& request) const {
  if (request.keys == std::vector{kNoKeys}) return {};
  if (!request.keys.empty()) return request.keys;
  std::vector<std::uint32_t> all(slots_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  return all;
}

std::int64_t Shard::count_of(const std::vector<std::uint32_t>& keys) const {
  std::int64_t count = 0;
  for (const std::uint32_t key : keys) count += slots_[key].count;
  return count;
}

Answer Shard::check_keys(const Request& request) const {
  std::set<std::uint32_t> seen;
  for (const std::uint32_t key : request.keys) {
    if (key == kNoKeys && request.keys.size() == 1) break;
    if (key >= slots_.size())
      return invalid("key " + std::to_string(key) + " does not exist; this shard has " +
                     std::to_string(slots_.size()) + " keys");
    if (!seen.insert(key).second)
      return invalid("tensor " + slots_[key].name + " is named twice in one request");
  }
  if (request.op == Op::kPull) return {};  // anybody may read
  return check_worker(request);
}

Answer Shard::check_worker(const Request& request) const {
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

}  // namespace weft::ps::internal
