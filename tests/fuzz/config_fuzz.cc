// Configuration files and --set assignments.
#include "weft/base/config.h"

#include "tests/fuzz/fuzz.h"

using weft::Config;
using weft::Errc;
using weft::Schema;
using weft::fuzz::accepts;
using weft::fuzz::check;

namespace {

Schema schema() {
  return {{"train.batch", std::int64_t{64}, "samples", {.min = 1, .max = 1e6}},
          {"train.lr", 0.1, "learning rate", {.min = 0}},
          {"train.decay", std::vector<double>{0.5, 0.1}, "factors", {.min = 0, .max = 1}},
          {"train.at", std::vector<std::int64_t>{1, 2}, "steps", {.min = 0}},
          {"optim.name", std::string("sgd"), "optimizer", {.choices = {"sgd", "adamw"}}},
          {"run.tags", std::vector<std::string>{"a"}, "names"},
          {"run.name", std::string("run"), "any text"},
          {"run.quiet", false, "says less"}};
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accepts({Errc::kBadConfig}, [&] {
    const Config config = Config::parse(text, "fuzz.toml", schema());
    const Config again = Config::parse(config.to_toml(), "fuzz.toml", schema());
    check(again.to_toml() == config.to_toml(),
          "what a configuration prints reads back as the same");
  });
  Config config(schema());
  const std::string before = config.to_toml();
  if (!accepts({Errc::kBadConfig}, [&] { config.set(text); }))
    check(config.to_toml() == before, "a bad assignment changes nothing");
}
