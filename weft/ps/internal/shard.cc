// The state of a shard changes in apply() alone, one command after the other. The copies of a shard
// apply the same commands in the same order, and must end with the same bits. This gives two rules
// for all code here:
//
//   deterministic    No clock, address, random number or thread decides anything.
//   all or nothing   A refusal changes nothing but the list of answers. So every check, that of
//                    room too, comes before the first change.
//
// A refusal is an answer: all copies give it alike. An exception concerns this server alone (no
// memory, no folder). The replica then lets the other copies refuse as well, or the server ends.
//
// Sync mode is SSP with bound 0:
//
//   push of worker w at its step s ──> rounds_[s][w], clock of w = s + 1
//   finish_rounds()                ──> applies step s once no worker that counts is at s or before
//
// Not only a push completes a step: a worker that leaves, or joins again at a later step, holds up
// nobody. So join() and leave() end with finish_rounds(), too.
#include "weft/ps/internal/shard.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace weft::ps::internal {
namespace {

constexpr std::uint32_t kStateVersion = 2;
constexpr std::uint64_t kMb = 1'000'000;

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
  } catch (const Error&) {  // its text cannot be read
    return invalid("a refusal is malformed");
  }
}

std::string mb(std::uint64_t bytes) { return std::to_string((bytes + kMb - 1) / kMb); }

Answer refuse_full(const std::string& what, const std::string& raise) {
  return refuse(Errc::kUnavailable,
                "the parameter server is full: " + what + "; nothing was changed. Raise " + raise);
}

// The refusal of parts that cannot be; kDone if there is none.
Answer check_parts(const Definition& given) {
  for (const Definition::Part& part : given.parts) {
    if (part.count < 0 || part.first < 0) return invalid("a tensor has a negative size");
    if (static_cast<std::uint64_t>(part.count) > given.values.size())
      return invalid("tensor " + part.name + " has fewer values than its size");
  }
  return {};
}

// The refusal of values or options that the first worker may not give.
Answer check_first(const Definition& given) {
  std::int64_t count = 0;
  for (const Definition::Part& part : given.parts) count += part.count;
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
  return {};
}

}  // namespace

Shard::Shard(std::uint64_t memory_bytes, bool remembers, TableFiles files)
    : memory_bytes_(memory_bytes), remembers_(remembers), files_(std::move(files)) {}

Shard::Turn Shard::turn(const Request& command) const {
  if (has_applied(command.client, command.sequence))
    return remembers_ ? Turn::kRepeated : Turn::kNext;
  return has_applied(command.client, command.sequence - 1) ? Turn::kNext : Turn::kEarly;
}

Answer Shard::stamped(Answer answer, const Request& request) const {
  answer.version = version_;
  answer.clock = workers_.clock(request.worker);
  answer.id = request.id;
  return answer;
}

Answer Shard::apply(const Request& command) {
  const Answer answer = stamped(change(command), command);
  // The server itself gives these two, and nobody repeats them. Their numbers are not those of new
  // commands of the client.
  if (command.op != Op::kDrop && command.op != Op::kMark) applied_.add(command, answer);
  return answer;
}

Answer Shard::change(const Request& command) {
  if (command.op == Op::kRefuse) return refusal_in(command.payload);
  if (command.op == Op::kDefine) return define(command);
  if (!tensors_.is_defined())
    return invalid("the parameter server has no tensors yet; call define() first");
  switch (command.op) {
    case Op::kJoin: return join(command);
    case Op::kLeave:
    case Op::kDrop: return leave(command);
    case Op::kMark:
      // A former process of the worker may still pull.
      if (const auto pulled = workers_.pulled(command.worker);
          !pulled.empty() && workers_.counts(command.worker, command.client))
        tensors_.copy(tensors_.keys_of(command), pulled);
      return {};
    case Op::kPush: return push(command);
    case Op::kLoad: return load(command);
    case Op::kPushRows: return push_rows(command);
    case Op::kEvict:
      if (Answer refusal = workers_.check(command); is_refused(refusal)) return refusal;
      return tables_.evict(command);
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
  if (Answer refusal = check_parts(given); is_refused(refusal)) return refusal;
  if (tensors_.is_defined()) {
    if (const std::string what = difference(tensors_.parts(), tables_.specs(), given);
        !what.empty())
      return invalid("the definition of this worker differs from that of the first one: " + what);
    if (!(given.options == tensors_.options()))
      return invalid("the options of this worker differ from those of the first one");
    return {};
  }
  if (Answer refusal = check_first(given); is_refused(refusal)) return refusal;
  const std::uint64_t bytes =
      TensorUpdates::bytes(given.options, given.values.size() / sizeof(float));
  if (!has_room(bytes)) return full("these tensors, with their optimizer state,", bytes);
  Tables tables(given.tables, files_);
  if (!has_room(bytes + tables.memory_bytes()))
    return full("these tensors and empty tables", bytes + tables.memory_bytes());
  tensors_ = Tensors(given);
  tables_ = std::move(tables);
  return {};
}

Answer Shard::full(const std::string& what, std::uint64_t bytes) const {
  return refuse_full(what + " would take " + mb(bytes) + " MB beside " + mb(memory_in_use()) +
                         " MB in use, and memory_mb is " + std::to_string(memory_bytes_ / kMb),
                     "memory_mb or use more servers");
}

Answer Shard::full_of_files(const std::string& what, std::uint64_t bytes) const {
  return refuse_full(what + " would take " + mb(bytes) + " MB beside " + mb(tables_.file_bytes()) +
                         " MB in files, and folder_mb is " + std::to_string(files_.max_bytes / kMb),
                     "folder_mb, use more servers or evict rows");
}

Answer Shard::join(const Request& command) {
  const std::uint32_t worker = command.worker;
  if (worker == kNoWorker) return invalid("a worker needs a number to join");
  if (workers_.counts(worker, command.client)) {
    rounds_.drop_unfinished_rows(worker);  // it begins its step again
    return {};
  }
  const std::uint64_t bytes =
      tensors_.keeps_pulled() ? sizeof(float) * tensors_.values().size() : 0;
  if (workers_.pulled(worker).empty() && !has_room(bytes))
    return full("the values that worker " + std::to_string(worker) + " pulls", bytes);
  rounds_.drop_unfinished_rows(worker);
  std::int64_t step = workers_.clock_to_join(worker);
  // A push that this worker has made for a later step stays in its place.
  while (rounds_.has(step, worker)) ++step;
  workers_.join(command, step, bytes > 0 ? tensors_.values() : std::vector<float>{});
  finish_rounds();
  return {};
}

Answer Shard::leave(const Request& command) {
  if (!workers_.leave(command.worker, command.client)) return {};
  rounds_.drop_unfinished_rows(command.worker);
  finish_rounds();
  return {};
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

Answer Shard::check_keys(const Request& request) const {
  Answer refusal = tensors_.check_keys(request);
  if (is_refused(refusal) || request.op == Op::kPull) return refusal;  // anybody may read
  return workers_.check(request);
}

Answer Shard::push(const Request& command) {
  if (Answer refusal = check_keys(command); is_refused(refusal)) return refusal;
  if (Answer refusal = tensors_.check_lr(command); is_refused(refusal)) return refusal;
  const std::uint32_t worker = command.worker;
  const std::int64_t step = workers_.clock(worker);
  if (Answer refusal = rounds_.check_lr(command, step, tensors_.lr()); is_refused(refusal))
    return refusal;
  std::span<const float> values;
  if (Answer refusal = tensors_.decode(command, step, values); is_refused(refusal)) return refusal;
  Tensors::Keys keys = tensors_.keys_of(command);
  if (tensors_.options().staleness == kSync) {
    if (!has_room(values.size_bytes()))
      return full(
          "the push of worker " + std::to_string(worker) + ", which waits for the other workers,",
          values.size_bytes());
    rounds_.add(step, worker, {std::move(keys), {values.begin(), values.end()}, command.lr});
    tables_.advance(workers_.advance(worker));
    finish_rounds();
    return {};
  }
  const std::uint64_t stale = version_ - std::min(version_, command.version);
  ++staleness_[std::min<std::uint64_t>(stale, staleness_.size() - 1)];
  tensors_.update(keys, values, command.lr, workers_.pulled(worker));
  tables_.advance(workers_.advance(worker));
  ++version_;
  return {};
}

// Applies the pushes of each step that every worker has pushed for.
void Shard::finish_rounds() {
  const auto slowest = workers_.slowest();
  // If no worker counts any more, nobody is waited for: all steps are applied with the pushes that
  // they have.
  while (!rounds_.is_empty() && (!slowest || rounds_.first() < *slowest)) {
    staleness_[0] += rounds_.apply_first(tensors_, tables_);
    ++version_;
  }
}

Answer Shard::pull_delta(const Request& command) {
  if (!tensors_.options().pull_deltas)
    return invalid("this parameter server gives values, not differences; set pull_deltas");
  if (Answer refusal = check_keys(command); is_refused(refusal)) return refusal;
  Answer answer;
  answer.payload = tensors_.difference(command, workers_.pulled(command.worker),
                                       workers_.encoded(command.worker));
  return answer;
}

bool Shard::is_ready(const Request& pull) const {
  const std::int64_t staleness = tensors_.options().staleness;
  return !tensors_.is_defined() || staleness < 0 || workers_.may_pull(pull, staleness);
}

Answer Shard::check_pull(const Request& pull) const {
  if (!tensors_.is_defined())
    return invalid("the parameter server has no tensors yet; call define() first");
  return stamped(pull.op == Op::kPullRows ? tables_.check_pull(pull) : check_keys(pull), pull);
}

std::size_t Shard::pull_bytes(const Request& pull) const {
  if (pull.op == Op::kPullRows)
    return tables_.pull_bytes(pull.keys[0], RowKeys(pull.payload).keys().size());
  return tensors_.pull_bytes(tensors_.keys_of(pull));
}

void Shard::read(const Request& pull, std::span<std::byte> out) const {
  if (pull.op == Op::kPullRows)
    return tables_.read(pull.keys[0], RowKeys(pull.payload).keys(), out);
  tensors_.read(tensors_.keys_of(pull), out);
}

std::string Shard::begin_save() {
  ByteWriter out;
  out.put(kStateVersion);
  tensors_.save(out);
  out.put(version_);
  out.put_bytes(tables_.begin_pieces());
  return out.take();
}

Answer Shard::load(const Request& command) {
  const auto refuse = [](const std::string& text) {
    return invalid("the saved state cannot be loaded: " + text);
  };
  if (!workers().empty()) return refuse("workers count; load it before the first one joins");
  try {
    ByteReader all(command.payload);
    const std::string_view head = all.take_view(all.take<std::uint64_t>(), 1);
    std::vector<std::string_view> pieces;
    while (all.left() > 0) pieces.push_back(all.take_view(all.take<std::uint64_t>(), 1));
    ByteReader in(head);
    if (in.take<std::uint32_t>() != kStateVersion) return refuse("it has another version");
    Tensors tensors = tensors_.loaded(in);
    const auto version = in.take<std::uint64_t>();
    const std::string_view rows = head.substr(head.size() - in.left());
    // The last part that may fail. It replaces the rows itself, and what follows cannot fail.
    if (Answer refusal = load_rows(rows, pieces); is_refused(refusal)) return refusal;
    tensors_ = std::move(tensors);
    version_ = std::max(version_, version);
  } catch (const Error& error) {
    if (error.code() == Errc::kUnavailable) throw;  // this server lacks memory
    if (error.code() == Errc::kInvalidArgument) return refuse(error.message());
    return refuse("it is malformed");
  }
  return {};
}

// As load(): all or nothing.
Answer Shard::load_rows(std::string_view head, const std::vector<std::string_view>& pieces) {
  Tables loaded = tables_.loaded(head, pieces, files_);
  const std::uint64_t now = tables_.memory_bytes(), then = loaded.memory_bytes();
  if (then > now && !has_room(then - now)) return full("the rows of the saved state", then - now);
  if (loaded.file_bytes() > std::max(files_.max_bytes, tables_.file_bytes()))
    return full_of_files("the rows of the saved state", loaded.file_bytes());
  tables_ = std::move(loaded);
  return {};
}

std::string Shard::snapshot() const { return snapshot_without_rows().append(tables_.snapshot()); }

std::string Shard::snapshot_without_rows() const {
  ByteWriter out;
  out.put(kStateVersion);
  tensors_.put(out);
  workers_.put(out);
  applied_.put(out);
  rounds_.put(out);
  workers_.put_last_clock(out);
  out.put(version_);
  out.put(bytes());
  for (const std::uint64_t count : staleness_) out.put(count);
  return out.take();
}

void Shard::take_state(std::string_view bytes, bool has_rows) {
  ByteReader in(bytes);
  if (in.take<std::uint32_t>() != kStateVersion)
    throw Error(Errc::kCorrupt, "the state of a parameter server has another version");
  // Built aside: bytes that do not fit leave the state as it was.
  Shard fresh(memory_bytes_, remembers_, files_);
  fresh.tensors_ = Tensors::taken(in);
  fresh.workers_ = Workers::taken(in);
  fresh.applied_ = Applied::taken(in);
  fresh.rounds_ = Rounds::taken(in);
  fresh.workers_.take_last_clock(in);
  fresh.version_ = in.take<std::uint64_t>();
  require_fit(in.take<std::uint64_t>() == fresh.bytes());
  for (std::uint64_t& count : fresh.staleness_) count = in.take<std::uint64_t>();
  const std::string_view tables = bytes.substr(bytes.size() - in.left());
  fresh.tables_ = has_rows ? Tables::restored(tables, files_) : Tables::receiving(tables, files_);
  require_fit(fresh.workers_.fits(fresh.tensors_.values().size(), fresh.tensors_.keeps_pulled()) &&
              fresh.rounds_.fits(fresh.tensors_, fresh.tables_));
  *this = std::move(fresh);
}

}  // namespace weft::ps::internal
