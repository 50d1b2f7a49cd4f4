#include "weft/plan/model/profile.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <locale>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

using Strings = std::vector<std::string>;
using Numbers = std::vector<double>;

constexpr int kProfileDigits = 9;

Schema profile_schema() {
  const Limits sizes = {.min = 0, .max = 1e15, .choices = {}};
  const Limits times = {.min = 0, .max = 1e12, .choices = {}};
  return Schema{
      {"name", "", "What was measured."},
      {"machine", "", "Identity of the machine."},
      {"ranks", std::int64_t{1}, "Processes that computed at once.", {.min = 1, .max = 1e6}},
      {"tokens", std::int64_t{0}, "Tokens of a sample; 0: images.", {.min = 0, .max = 1e8}},
      {"batches", Numbers{}, "Samples of each measurement.", {.min = 1, .max = 1e6}},
      {"block.name", Strings{}, "Names of the blocks."},
      {"block.forward_us", Numbers{}, "By block and measurement.", times},
      {"block.backward_us", Numbers{}, "By block and measurement.", times},
      {"block.parameters", Numbers{}, "By block.", sizes},
      {"block.output_bytes", Numbers{}, "Of a sample, by block.", sizes},
      {"block.kept_bytes", Numbers{}, "Of a sample, by block.", sizes},
      {"block.flops",
       Numbers{},
       "Of a sample's forward, by block; 0: unknown.",
       {.min = 0, .max = 1e18, .choices = {}}}};
}

// The numbers of a key, of which there must be `count`; or zeros, if the key may be missing.
Numbers numbers_of(const Config& config, const std::string& key, std::size_t count, bool needed) {
  const Numbers& all = config.get_doubles(key);
  if (all.empty() && !needed) return Numbers(count, 0);
  if (all.size() != count) {
    const bool missing = config.origin(key) == "default";
    throw Error(Errc::kBadConfig, (missing ? config.origin("block.name") : config.origin(key)) +
                                      ": " + key + " has " + std::to_string(all.size()) +
                                      " entries; give " + std::to_string(count));
  }
  return all;
}

Numbers scaled(const Numbers& all, std::size_t first, std::size_t count, double factor) {
  Numbers some;
  for (std::size_t i = first; i < first + count; ++i) some.push_back(all[i] * factor);
  return some;
}

std::string line_of(const std::string& key, const Numbers& numbers) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::setprecision(kProfileDigits) << key << " = [";
  for (std::size_t i = 0; i < numbers.size(); ++i) out << (i == 0 ? "" : ", ") << numbers[i];
  out << "]\n";
  return out.str();
}

}  // namespace

double seconds_for(const Profile& profile, const std::vector<double>& seconds, double samples) {
  const Numbers& at = profile.batches;
  if (at.size() == 1) return seconds[0] * samples / at[0];
  std::size_t i = 1;
  while (i + 1 < at.size() && samples > at[i]) ++i;
  const double slope = (seconds[i] - seconds[i - 1]) / (at[i] - at[i - 1]);
  const double line = seconds[i - 1] + slope * (samples - at[i - 1]);
  return std::max(line, samples * std::min(seconds[i] / at[i], seconds[i - 1] / at[i - 1]));
}

Blocks measured_blocks(const Profile& profile, const Split& split) {
  WEFT_REQUIRE(split.tp == 1 && split.cp == 1 && split.ep == 1,
               "measured blocks can be divided over dp, fsdp and pp; use tp = cp = ep = 1");
  Blocks blocks;
  for (const MeasuredBlock& one : profile.blocks) {
    ModelBlock b;
    b.name = one.name;
    b.parameters = one.parameters;
    b.output_bytes = one.output_bytes * split.micro_batch;
    b.kept_all = b.kept_selective = one.kept_bytes * split.micro_batch;
    const double input = blocks.empty() ? 0 : blocks.back()->output_bytes;
    b.kept_input = std::min(input, b.kept_all);
    Operator op;
    op.kind = OperatorKind::kMeasured;
    op.name = one.name;
    op.forward_seconds = seconds_for(profile, one.forward, split.micro_batch);
    op.backward_seconds = seconds_for(profile, one.backward, split.micro_batch);
    op.measured_flops = one.flops * split.micro_batch;
    b.operators.push_back(op);
    blocks.push_back(std::make_shared<const ModelBlock>(std::move(b)));
  }
  return blocks;
}

Model measured_model(Profile profile) {
  Model model;
  model.family = Family::kMeasured;
  model.layers = static_cast<std::int64_t>(profile.blocks.size());
  model.sequence = std::max<std::int64_t>(1, profile.tokens);
  model.profile = std::make_shared<const Profile>(std::move(profile));
  return model;
}

std::string to_toml(const Profile& profile) {
  std::string names, text = "name = " + json_quote(profile.name) +
                            "\nmachine = " + json_quote(profile.machine) +
                            "\nranks = " + std::to_string(profile.ranks) +
                            "\ntokens = " + std::to_string(profile.tokens) + "\n";
  Numbers forward, backward, parameters, outputs, kept, flops;
  for (const MeasuredBlock& block : profile.blocks) {
    names += (names.empty() ? "" : ", ") + json_quote(block.name);
    for (const double s : block.forward) forward.push_back(s * 1e6);
    for (const double s : block.backward) backward.push_back(s * 1e6);
    parameters.push_back(block.parameters);
    outputs.push_back(block.output_bytes);
    kept.push_back(block.kept_bytes);
    flops.push_back(block.flops);
  }
  text += line_of("batches", profile.batches) + "\n[block]\nname = [" + names + "]\n" +
          line_of("forward_us", forward) + line_of("backward_us", backward) +
          line_of("parameters", parameters) + line_of("output_bytes", outputs) +
          line_of("kept_bytes", kept);
  const bool known = std::any_of(flops.begin(), flops.end(), [](double f) { return f > 0; });
  if (known) text += line_of("flops", flops);
  WEFT_REQUIRE(profile.blocks.size() <= kMaxProfileBlocks &&
                   profile.batches.size() <= kMaxProfileBatches && text.size() <= kMaxProfileBytes,
               "a profile of " + counted(profile.blocks.size(), "block") + " with " +
                   counted(profile.batches.size(), "measurement") + " each (" +
                   std::to_string(text.size()) + " bytes) is too large; there may be " +
                   std::to_string(kMaxProfileBlocks) + " blocks, " +
                   std::to_string(kMaxProfileBatches) + " measurements and " +
                   std::to_string(kMaxProfileBytes) + " bytes");
  return text;
}

Profile parse_profile(std::string_view toml, const std::string& source) {
  const Config config = Config::parse(toml, source, profile_schema(), kMaxProfileBytes);
  Profile profile{.name = config.get_string("name"),
                  .machine = config.get_string("machine"),
                  .ranks = static_cast<int>(config.get_int("ranks")),
                  .tokens = config.get_int("tokens"),
                  .batches = config.get_doubles("batches")};
  const Strings& names = config.get_strings("block.name");
  const std::size_t batches = profile.batches.size(), count = names.size();
  if (count == 0 || count > kMaxProfileBlocks || batches == 0 || batches > kMaxProfileBatches) {
    throw Error(Errc::kBadConfig, source + ": give block.name with 1 to " +
                                      std::to_string(kMaxProfileBlocks) + " blocks, and 1 to " +
                                      std::to_string(kMaxProfileBatches) + " batches");
  }
  for (std::size_t i = 1; i < batches; ++i) {
    if (profile.batches[i] <= profile.batches[i - 1])
      throw Error(Errc::kBadConfig, config.origin("batches") + ": batches must ascend");
  }
  const Numbers forward = numbers_of(config, "block.forward_us", count * batches, true),
                backward = numbers_of(config, "block.backward_us", count * batches, true),
                parameters = numbers_of(config, "block.parameters", count, true),
                outputs = numbers_of(config, "block.output_bytes", count, true),
                kept = numbers_of(config, "block.kept_bytes", count, true),
                flops = numbers_of(config, "block.flops", count, false);
  for (std::size_t i = 0; i < count; ++i) {
    profile.blocks.push_back({.name = names[i],
                              .forward = scaled(forward, i * batches, batches, 1e-6),
                              .backward = scaled(backward, i * batches, batches, 1e-6),
                              .parameters = parameters[i],
                              .output_bytes = outputs[i],
                              .kept_bytes = kept[i],
                              .flops = flops[i]});
  }
  return profile;
}

Profile load_profile(const std::string& path) {
  return parse_profile(read_file(path, kMaxProfileBytes), path);
}

}  // namespace weft::plan
