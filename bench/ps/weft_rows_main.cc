// weft's part of the bench of the parameter server, embedding tables: each worker pulls or pushes
// rows under random keys, as fast as it can.
//
//   weft_bench_ps_rows [op=pull] [transport=local] [servers=1] [backup=0] [workers=2]
//                      [rows=200000] [floats=64] [batch=4096] [seconds=3] [folder=]
//
// With a folder, the rows lie in files there (TableSpec::mapped).
// op=push: gradients, with SGD. A worker has two calls of `batch` keys outstanding. The table has
// all rows before the run. Writes one JSON object: the rows of all workers in a second. `verified`:
// before the run, each worker pulls the right values; after it, the table has those of SGD with all
// gradients.
#include <algorithm>
#include <array>
#include <memory>

#include "bench/ps/measure.h"
#include "weft/base/random.h"

namespace weft::bench {
namespace {

constexpr std::size_t kBatches = 32;  // of a worker; it begins again after them
constexpr std::size_t kOutstanding = 2;

using Keys = std::vector<std::uint64_t>;

struct Settings {
  explicit Settings(Words& words)
      : pushes(words.take("op", "pull") == "push"),
        rows(std::stoul(words.take("rows", "200000"))),
        floats(std::stoul(words.take("floats", "64"))),
        batch(std::stoul(words.take("batch", "4096"))) {}
  bool pushes;
  std::size_t rows, floats, batch;
};

// Keys are spread over 64 bits.
std::uint64_t key_of(std::uint64_t row) { return row * 0x9e3779b97f4a7c15; }

// Rows of the batches of a worker.
std::vector<Keys> batches_of(const Settings& s, std::uint32_t worker) {
  Random random(worker + 1);
  std::vector<Keys> batches(kBatches, Keys(s.batch));
  for (Keys& batch : batches)
    for (std::uint64_t& row : batch) row = random.below(s.rows);
  return batches;
}

Keys keys_of(const Keys& rows) {
  Keys keys(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) keys[i] = key_of(rows[i]);
  return keys;
}

// The first push of each row adds 1 to each element, by a gradient of -1024.
void fill(ps::Client& client, const Settings& s) {
  for (std::size_t first = 0; first < s.rows; first += s.batch) {
    Keys rows(std::min(s.batch, s.rows - first));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = first + i;
    const std::vector<float> gradients(rows.size() * s.floats, static_cast<float>(-1 / kLr));
    client.wait(client.push_rows("t", keys_of(rows), gradients));
  }
}

// True if each row of the table has had so many pushes of gradient_of(), and `fills` of fill().
bool verify(ps::Client& client, const Settings& s, const std::vector<std::int64_t>& pushes,
            double fills) {
  for (std::size_t first = 0; first < s.rows; first += s.batch) {
    Keys rows(std::min(s.batch, s.rows - first));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = first + i;
    std::vector<float> values(rows.size() * s.floats);
    client.wait(client.pull_rows("t", keys_of(rows), values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto count = static_cast<double>(pushes[rows[i / s.floats]]);
      const double expected = fills - kLr * count * gradient_of(i % s.floats);
      if (values[i] != static_cast<float>(expected)) return false;
    }
  }
  return true;
}

// A worker's calls, with the memory of those that are outstanding.
class Calls {
 public:
  Calls(ps::Client& client, const Settings& s, std::uint32_t worker) : client_(client), s_(s) {
    for (const Keys& batch : batches_of(s, worker)) batches_.push_back(keys_of(batch));
    values_.fill(std::vector<float>(s.batch * s.floats));
    for (auto& values : values_)
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient_of(i % s.floats);
  }
  void operate() {
    const std::size_t slot = next_ % kOutstanding;
    client_.wait(tickets_[slot]);
    const Keys& keys = batches_[next_++ % kBatches];
    tickets_[slot] = s_.pushes ? client_.push_rows("t", keys, values_[slot])
                               : client_.pull_rows("t", keys, values_[slot]);
  }

 private:
  ps::Client& client_;
  const Settings s_;
  std::vector<Keys> batches_;
  std::array<std::vector<float>, kOutstanding> values_;
  std::array<ps::Client::Ticket, kOutstanding> tickets_{};  // 0 is no request
  std::size_t next_ = 0;
};

int run(Words& words) {
  const Common common(words);
  const Settings s(words);
  words.expect_end();

  Measured measured;
  measured.define = [&](ps::Client& client) {
    ps::Options options;
    options.staleness = ps::kAsync;
    client.define({}, options,
                  {{.name = "t",
                    .row_floats = static_cast<std::int64_t>(s.floats),
                    .rule = kernels::Sgd{.lr = kLr},
                    .mapped = !common.folder.empty()}});
  };
  measured.prepare = [&](ps::Client& client, std::uint32_t worker) {
    if (worker == 0) fill(client, s);
    // The other workers wait until the table is full and right.
    for (const Deadline patience = Deadline::in(std::chrono::seconds(60));
         !verify(client, s, std::vector<std::int64_t>(s.rows), 1);) {
      if (worker == 0 || patience.passed())
        throw Error(Errc::kInternal, "the table has other values before the run");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return [calls = std::make_shared<Calls>(client, s, worker)] { calls->operate(); };
  };
  measured.verify = [&](ps::Client& reader, const std::vector<std::int64_t>& counts) {
    std::vector<std::int64_t> pushes(s.rows);
    for (std::uint32_t worker = 0; s.pushes && worker < counts.size(); ++worker) {
      const std::vector<Keys> batches = batches_of(s, worker);
      for (std::size_t i = 0; i < kBatches; ++i) {
        const auto number = static_cast<std::int64_t>(i), all = static_cast<std::int64_t>(kBatches);
        const std::int64_t uses = (counts[worker] + all - 1 - number) / all;
        for (const std::uint64_t row : batches[i]) pushes[row] += uses;
      }
    }
    return verify(reader, s, pushes, 1);
  };
  const Result result = measure(common, measured);
  return write(common,
               std::string(",\"op\":\"") + (s.pushes ? "push" : "pull") + "\",\"rows\":" +
                   std::to_string(s.rows) + ",\"floats\":" + std::to_string(s.floats) +
                   ",\"batch\":" + std::to_string(s.batch),
               result.per_second * static_cast<double>(s.batch), result.verified);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  return weft::bench::run_bench("weft_bench_ps_rows", argc, argv, weft::bench::run);
}
