#include "weft/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/random.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schema small_schema() {
  return Schema{
      {"name", "run", "name of the run"},
      {"train.batch", 64, "samples a rank and step", {.min = 1, .max = 4096}},
      {"train.resume", false, "go on from the last checkpoint"},
      {"optim.lr", 0.1, "learning rate", {.min = 0}},
      {"optim.name", "sgd", "optimizer", {.choices = {"sgd", "adamw"}}},
      {"model.widths", std::vector<std::int64_t>{256, 128}, "hidden layers", {.min = 1}},
      {"optim.betas", std::vector<double>{0.9, 0.999}, "decay of the moments"},
      {"data.augment",
       std::vector<std::string>{},
       "changes to images",
       {.choices = {"crop", "flip"}}},
  };
}

Config parse(const std::string& text) { return Config::parse(text, "r.toml", small_schema()); }

template <class Code>
std::string error_of(Errc code, Code run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.message().find('\n'), std::string::npos);
    return error.message();
  }
  return "no error";
}

std::string file_error(const std::string& text) {
  return error_of(Errc::kBadConfig, [&] { parse(text); });
}

std::string set_error(const std::string& assignment) {
  return error_of(Errc::kBadConfig, [&] { Config(small_schema()).set(assignment); });
}

TEST(Config, AFileReplacesDefaultsAndEveryValueRecordsItsOrigin) {
  const TempDir folder;
  const std::string path = folder / "recipe.toml";
  write_file_atomic(path,
                    "name = \"a\"\n[train]\nbatch = 32\n\n[optim]\nlr = "
                    "1\nbetas = [0, 0.5]\n[data]\naugment = [\"crop\"]\n");
  Config config = Config::load(path, small_schema());
  config.set("train.resume=true");
  EXPECT_EQ(config.get_string("name"), "a");
  EXPECT_EQ(config.get_int("train.batch"), 32);
  EXPECT_TRUE(config.get_bool("train.resume"));
  EXPECT_EQ(config.get_double("optim.lr"), 1.0);
  EXPECT_THAT(config.get_doubles("optim.betas"), ElementsAre(0, 0.5));
  EXPECT_THAT(config.get_ints("model.widths"), ElementsAre(256, 128));
  EXPECT_THAT(config.get_strings("data.augment"), ElementsAre("crop"));
  EXPECT_EQ(config.origin("train.batch"), path + ":3");
  EXPECT_EQ(config.origin("train.resume"), "--set");
  EXPECT_EQ(config.origin("optim.name"), "default");
}

TEST(Config, AnUnknownKeyNamesItsLineAndTheNearestKnownKey) {
  EXPECT_EQ(file_error("\n[train]\nbacth = 3"),
            "r.toml:3: unknown key train.bacth; did you mean train.batch?");
  EXPECT_EQ(file_error("[trian]\nbatch = 3"),
            "r.toml:2: unknown key trian.batch; did you mean train.batch?");
  EXPECT_EQ(file_error("lr = 3"), "r.toml:1: unknown key lr; did you mean optim.lr?");
  EXPECT_EQ(file_error("zebra = 3"), "r.toml:1: unknown key zebra");
  EXPECT_EQ(file_error("[zebra]"), "r.toml:1: unknown key zebra");
  EXPECT_EQ(file_error("\"train.batch\" = 3"),
            "r.toml:1: unknown key \"train.batch\"; did you mean train.batch?");
  EXPECT_EQ(set_error("train.bach=3"),
            "--set train.bach=3: unknown key train.bach; did you mean train.batch?");
}

TEST(Config, AWrongTypeRangeOrChoiceNamesTheExpectedValue) {
  EXPECT_EQ(file_error("[train]\nbatch = \"big\""),
            "r.toml:2: train.batch = \"big\", but a whole number from 1 to "
            "4096 is expected");
  EXPECT_EQ(file_error("train.batch = 0"),
            "r.toml:1: train.batch = 0, but a whole number from 1 to 4096 is "
            "expected");
  EXPECT_EQ(file_error("train.batch = 1.0"),
            "r.toml:1: train.batch = 1.0, but a whole number from 1 to 4096 is "
            "expected");
  EXPECT_EQ(file_error("train.batch = {a = 1}"),
            "r.toml:1: train.batch = { a = 1 }, but a whole number from 1 to "
            "4096 is expected");
  EXPECT_EQ(file_error("train.resume = 1"),
            "r.toml:1: train.resume = 1, but true or false is expected");
  EXPECT_EQ(file_error("optim.lr = -0.5"),
            "r.toml:1: optim.lr = -0.5, but a number of at least 0 is expected");
  EXPECT_EQ(file_error("optim.lr = nan"),
            "r.toml:1: optim.lr = nan, but a number of at least 0 is expected");
  EXPECT_EQ(file_error("optim.name = \"adam\""),
            "r.toml:1: optim.name = \"adam\", but one of sgd, adamw is expected");
  EXPECT_EQ(file_error("model.widths = [3, 0]"),
            "r.toml:1: model.widths = [ 3, 0 ], but a list of whole numbers of "
            "at least 1 is expected");
  EXPECT_EQ(file_error("model.widths = [3, \"a\"]"),
            "r.toml:1: model.widths = [ 3, \"a\" ], but a list of whole "
            "numbers of at least 1 is expected");
  EXPECT_EQ(file_error("data.augment = [\"spin\"]"),
            "r.toml:1: data.augment = [ \"spin\" ], but a list of crop, flip "
            "is expected");
  EXPECT_EQ(file_error("train = 3"),
            "r.toml:1: train is a table of keys: write train.key = value, or "
            "the key below [train]");
}

TEST(Config, InvalidTomlNamesTheLine) {
  EXPECT_THAT(file_error("name = \"a\"\nname = \"b\""), HasSubstr("r.toml:2: "));
  EXPECT_THAT(file_error("\n\nname = "), HasSubstr("r.toml:3: "));
  EXPECT_THAT(file_error("name = \"\xFF\""), HasSubstr("r.toml:1: "));
  EXPECT_THAT(file_error(std::string(70000, '#')), HasSubstr("larger than 64 KiB"));
}

TEST(Config, DeepNestingIsAnErrorAndNotACrash) {
  const auto dotted = [](int parts) {
    std::string key = "a";
    for (int part = 1; part < parts; ++part) key += ".a";
    return key;
  };
  EXPECT_THAT(file_error(dotted(64) + " = 1"), HasSubstr("unknown key a.a.a"));
  for (const int parts : {65, 32000}) {  // the most that fit in a file of the maximum size
    EXPECT_EQ(file_error("\n" + dotted(parts) + " = 1"), "r.toml:2: a key of more than 64 parts");
    EXPECT_EQ(file_error("[" + dotted(parts) + "]"), "r.toml:1: a key of more than 64 parts");
  }
  std::string numbers = "0.5", words = "a.";
  for (int i = 0; i < 100; ++i) numbers += ", 0.5", words += "a.";
  EXPECT_EQ(parse("optim.betas = [" + numbers + "] # " + words).get_doubles("optim.betas").size(),
            101U);
  EXPECT_EQ(parse("name = \"" + words + "\"").get_string("name"), words);
  EXPECT_THAT(file_error("name = " + std::string(60000, '[')), HasSubstr("r.toml:1: "));
}

TEST(Config, OverridesAreTomlValuesOrBareStringsForStringKeys) {
  Config config(small_schema());
  config.set("train.batch=0x20", "--batch");
  config.set("model.widths=[1, 2]");
  config.set("optim.lr=1e-3");
  EXPECT_EQ(config.get_int("train.batch"), 32);
  EXPECT_EQ(config.origin("train.batch"), "--batch");
  EXPECT_THAT(config.get_ints("model.widths"), ElementsAre(1, 2));
  EXPECT_EQ(config.get_double("optim.lr"), 1e-3);
  const std::pair<const char*, const char*> strings[] = {
      {"a b", "a b"}, {"\"a b\"", "a b"}, {"12", "12"},         {"true", "true"},
      {"a=b", "a=b"}, {"", ""},           {"/x # y", "/x # y"}, {"1\nother = 2", "1\nother = 2"}};
  for (const auto& [written, value] : strings) {
    config.set(std::string("name=") + written);
    EXPECT_EQ(config.get_string("name"), value);
  }
}

TEST(Config, ABadOverrideThrowsAndKeepsTheValue) {
  EXPECT_EQ(set_error("train.batch"), "--set train.batch: expected key=value");
  EXPECT_EQ(set_error("train.batch=many"),
            "--set train.batch=many: a whole number from 1 to 4096 is expected");
  EXPECT_EQ(set_error("train.batch="),
            "--set train.batch=: a whole number from 1 to 4096 is expected");
  EXPECT_EQ(set_error("train.batch=1\nname=2"),
            "--set train.batch=1 name=2: a whole number from 1 to 4096 is expected");
  EXPECT_THAT(set_error("optim.name=adam"), HasSubstr("one of sgd, adamw is expected"));
  EXPECT_THAT(set_error("name=\xFF"), HasSubstr("not UTF-8"));
  EXPECT_THAT(set_error("=3"), HasSubstr("unknown key"));
  EXPECT_THAT(set_error("name=" + std::string(70000, 'x')), HasSubstr("longer than 64 KiB"));
  Config config(small_schema());
  EXPECT_THROW(config.set("train.batch=0"), Error);
  EXPECT_EQ(config.get_int("train.batch"), 64);
  EXPECT_EQ(config.origin("train.batch"), "default");
}

TEST(Config, RoundTripsThroughToml) {
  Config config(small_schema());
  config.set("optim.lr=1e-30");
  config.set("optim.betas=[1, 3e20]");
  config.set("name=\"a \\\"b\\\" \\u0001\\u007f\\n\xC3\xA9\"");
  const Config again = Config::parse(config.to_toml(), "again", small_schema());
  const auto before = config.describe();
  const auto after = again.describe();
  ASSERT_EQ(before.size(), small_schema().keys().size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].key, after[i].key);
    EXPECT_EQ(before[i].value, after[i].value);
    EXPECT_NE(after[i].origin, "default");
  }
  EXPECT_EQ(again.get_string("name"), config.get_string("name"));
  EXPECT_THAT(config.to_toml(), testing::StartsWith("name = "));
  EXPECT_THAT(config.to_toml(), HasSubstr("\n[train]\nbatch = 64\nresume = false\n"));
}

TEST(Config, ReadingAnUnknownKeyIsAnErrorOfTheCaller) {
  const Config config(small_schema());
  EXPECT_EQ(error_of(Errc::kInvalidArgument, [&] { config.get_int("train.bacth"); }),
            "there is no configuration key train.bacth");
  EXPECT_EQ(error_of(Errc::kInvalidArgument, [&] { config.get_int("optim.lr"); }),
            "configuration key optim.lr is of another type");
  EXPECT_EQ(error_of(Errc::kInvalidArgument, [] { Config::load("/nonexistent.toml", Schema{}); }),
            "cannot open /nonexistent.toml: No such file or directory");
}

TEST(Config, ASchemaRefusesKeysThatCollideAndDefaultsOutsideTheirLimits) {
  const auto refusal = [](Key key) {
    return error_of(Errc::kInvalidArgument, [&] { small_schema().add(std::move(key)); });
  };
  EXPECT_THAT(refusal({"name", 1, ""}), HasSubstr("declared twice"));
  EXPECT_THAT(refusal({"train", 1, ""}), HasSubstr("a key cannot be a table"));
  EXPECT_THAT(refusal({"train.batch.size", 1, ""}), HasSubstr("a key cannot be a table"));
  EXPECT_THAT(refusal({"a..b", 1, ""}), HasSubstr("malformed"));
  EXPECT_THAT(refusal({"a b", 1, ""}), HasSubstr("malformed"));
  EXPECT_THAT(refusal({"a", 1, "", {.min = 2}}), HasSubstr("the default of configuration key a"));
  EXPECT_THAT(refusal({"a", 1.0, "", {.min = 0, .max = {}, .choices = {}, .below = 1}}),
              HasSubstr("the default of configuration key a"));
  EXPECT_EQ(Schema{}.add(small_schema()).keys().size(), small_schema().keys().size());
}

// Overwrites, removes or inserts some characters.
std::string damaged(std::string text, Random& random) {
  const std::string pieces[] = {
      "[",         "]",   "\"", "'''",   "=",   ".", "\n",
      "\xFF",      "{a=", "}",  "1e999", "nan", "#", "9223372036854775808",
      "1979-05-27"};
  for (std::uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
    const std::size_t at = random.below(text.size());
    switch (random.below(4)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 1: text.erase(at, 1 + random.below(10)); break;
      case 2: text.insert(at, pieces[random.below(std::size(pieces))]); break;
      default: text.insert(at, text.substr(random.below(text.size()), random.below(30))); break;
    }
    if (text.empty()) text = "x";
  }
  return text;
}

// For any content of a file or an override, the result is values within their limits, or a typed
// error on one line.
TEST(Config, RandomDamageCausesOnlyTypedErrors) {
  const std::string valid = Config(small_schema()).to_toml();
  Random random(7);
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = damaged(valid, random);
    try {
      const Config config = parse(text);
      EXPECT_GE(config.get_int("train.batch"), 1);
      EXPECT_TRUE(std::isfinite(config.get_double("optim.lr")));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig) << text;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
    set_error("model.widths=" + text);  // if there is an error, expects the code and a single line
  }
  EXPECT_GT(accepted, 10);  // the damage must not be so coarse that only errors are tried
  EXPECT_LT(accepted, 1900);
}

TEST(Config, NonAsciiTextMustBeQuoted) {
  const Schema schema{{"train.batch", std::int64_t{64}, "samples"},
                      {"run.name", std::string("run"), "any text"}};
  // Found by fuzzing; toml++ 3.3 does not survive the first three.
  for (const char* text :
       {"[train]\nbatch = \xc3\x9az3", "[train]\nbatch = \xcd\xa1", "[train]\n\xe2\xb1\x9e = 1",
        "[run]\nname = \"\"\"a\"\"\"\"\"\xc3\x9a", "[run]\nname = 'a\\'\xc3\x9a", "[run]\n\xff"}) {
    try {
      Config::parse(text, "x.toml", schema);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(
          error.message(),
          testing::MatchesRegex("x.toml:2: .* outside of quotes: put the text in \"quotes\""));
    }
  }
  const char* quoted =
      "\xef\xbb\xbf# caf\xc3\xa9 \"\n[run]\nname = \"\"\"\\\"\"\"\xc3\x9a\"\"\"\"\" # \xc3\x9a";
  EXPECT_EQ(Config::parse(quoted, "x.toml", schema).get_string("run.name"), "\"\"\"\xc3\x9a\"\"");
  Config config(schema);
  config.set("run.name=caf\xc3\xa9");
  EXPECT_EQ(config.get_string("run.name"), "caf\xc3\xa9");
  EXPECT_THROW(config.set("train.batch=\xc3\x9a"), Error);
}

// Found by fuzzing: toml++ 3.3 uses the logarithm of 0.1 as a width.
TEST(Config, ShowsAListThatIsOutOfBoundsAsWritten) {
  Config config(Schema{{"train.decay", std::vector<double>{0.5}, "factors", {.min = 0, .max = 1}}});
  try {
    config.set("train.decay=[0.0625, 10.5, [], {\"a b\" = [0.01]}]");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                HasSubstr("train.decay = [ 0.0625, 10.5, [], { \"a b\" = [ 0.01 ] } ], but"));
  }
}

// Found by fuzzing: toml++ 3.3 searches for the end of the text that it cannot parse. Its behavior
// is undefined if it finds "\u045E" there.
TEST(Config, NonAsciiTextAfterASyntaxErrorIsIgnored) {
  const Schema schema{{"run.tags", std::vector<std::string>{"a"}, "names"}};
  for (const char* text : {"[run]\ntags = [+a'F\"\xd1\x9e\"\"", "[run]\ntags = 1a'\xd1\x9e'"}) {
    try {
      Config::parse(text, "x.toml", schema);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      EXPECT_TRUE(error.message().starts_with("x.toml:2: ")) << error.message();
    }
  }
  Config config(schema);
  EXPECT_THROW(config.set("run.tags=[+a'F\"\xd1\x9e\"\""), Error);
  config.set("run.tags=[\"\xd1\x9e\"]");
  EXPECT_THAT(config.get_strings("run.tags"), testing::ElementsAre("\xd1\x9e"));
}

TEST(Nearest, FindsTypingMistakesOnly) {
  EXPECT_EQ(nearest("trian", {"train", "run", "bench"}),
            "train");  // two neighbors swapped are one edit
  EXPECT_EQ(nearest("TRAIN", {"train"}), "train");
  EXPECT_EQ(nearest("bnch", {"train", "run", "bench"}), "bench");
  EXPECT_EQ(nearest("serve", {"train", "run", "bench"}), std::nullopt);
  EXPECT_EQ(nearest("", {"train"}), std::nullopt);
  EXPECT_EQ(nearest("train", {}), std::nullopt);
  EXPECT_EQ(nearest(std::string(300, 'x'), {std::string(300, 'x')}), std::nullopt);
}

}  // namespace
}  // namespace weft
