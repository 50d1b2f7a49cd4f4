// weft's part of the bench of the parameter server, dense tensors: servers and workers as
// processes. Each worker pushes a gradient and pulls the values, asynchronously, as fast as it can.
//
//   weft_bench_ps [transport=local] [servers=1] [backup=0] [workers=2] [parameters=235146]
//                 [push=none] [pull=none] [seconds=3]
//
// A worker writes its gradient before each push. An update is a push and the pull after it. Writes
// one JSON object: the updates of all workers in a second. `verified`: the values are those of SGD
// with these gradients (not with lossy codecs).
#include <cstring>
#include <numeric>

#include "bench/ps/measure.h"

namespace weft::bench {
namespace {

int run(Words& words) {
  const Common common(words);
  const std::size_t parameters = std::stoul(words.take("parameters", "235146"));
  ps::Options options;
  options.rule = kernels::Sgd{.lr = kLr};
  options.staleness = ps::kAsync;
  options.push_codec = words.take("push", "none");
  options.pull_codec = words.take("pull", "none");
  words.expect_end();

  Measured measured;
  measured.define = [&](ps::Client& client) {
    const std::vector<float> zeros(parameters);
    client.define({{"w", zeros}}, options);
  };
  measured.prepare = [&](ps::Client& client, std::uint32_t) {
    std::vector<float> gradient(parameters);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_of(i);
    return [&client, gradient] {
      std::memcpy(client.gradient("w").data(), gradient.data(), sizeof(float) * gradient.size());
      client.push();
      client.wait(client.pull());
    };
  };
  measured.verify = [&](ps::Client& reader, const std::vector<std::int64_t>& counts) {
    reader.wait(reader.pull());
    if (options.push_codec != "none" || options.pull_codec != "none") return true;
    const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0ll));
    for (std::size_t i = 0; i < parameters; ++i)
      if (reader.value("w")[i] != static_cast<float>(-kLr * all * gradient_of(i))) return false;
    return true;
  };
  const Result result = measure(common, measured);
  return write(common,
               ",\"push\":\"" + options.push_codec + "\",\"pull\":\"" + options.pull_codec +
                   "\",\"parameters\":" + std::to_string(parameters),
               result.per_second, result.verified);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  return weft::bench::run_bench("weft_bench_ps", argc, argv, weft::bench::run);
}
