"""The fields of config.json that transformers 5.23.0 knows; written by tools/known_fields.py."""

# By model_type; "" are those of every family.
_KNOWN = {
    "": """
        _commit_hash allow_is_causal_skip architectures attention_chunk_size attn_implementation
        chunk_size_feed_forward classifier_dropout default_theta dtype experts_implementation head_dim hidden_dropout
        hidden_size id2label is_causal is_encoder_decoder label2id max_position_embeddings name_or_path
        num_attention_heads num_labels output_attentions output_hidden_states partial_rotary_factor per_layer_config
        problem_type return_dict rope_parameters rope_scaling rope_theta sliding_window token_classification_bias
        torch_dtype transformers_version
    """,
    "albert": """
        attention_probs_dropout_prob bos_token_id classifier_dropout_prob embedding_size eos_token_id hidden_act
        hidden_dropout_prob initializer_range inner_group_num intermediate_size layer_norm_eps num_hidden_groups
        num_hidden_layers pad_token_id tie_word_embeddings type_vocab_size vocab_size
    """,
    "bart": """
        activation_dropout activation_function attention_dropout bos_token_id d_model decoder_attention_heads
        decoder_ffn_dim decoder_layerdrop decoder_layers decoder_start_token_id dropout encoder_attention_heads
        encoder_ffn_dim encoder_layerdrop encoder_layers eos_token_id forced_eos_token_id init_std is_decoder
        num_hidden_layers pad_token_id scale_embedding tie_word_embeddings use_cache vocab_size
    """,
    "bert": """
        add_cross_attention attention_probs_dropout_prob bos_token_id eos_token_id hidden_act hidden_dropout_prob
        initializer_range intermediate_size is_decoder layer_norm_eps num_hidden_layers pad_token_id
        tie_word_embeddings type_vocab_size use_cache vocab_size
    """,
    "bloom": """
        apply_residual_connection_post_layernorm attention_dropout bos_token_id eos_token_id initializer_range
        layer_norm_epsilon n_embed n_head n_layer num_hidden_layers pad_token_id pretraining_tp slow_but_exact
        tie_word_embeddings use_cache vocab_size
    """,
    "distilbert": """
        activation attention_dropout bos_token_id dim dropout eos_token_id hidden_dim initializer_range n_heads
        n_layers num_hidden_layers pad_token_id qa_dropout seq_classif_dropout sinusoidal_pos_embds
        tie_word_embeddings vocab_size
    """,
    "electra": """
        add_cross_attention attention_probs_dropout_prob bos_token_id embedding_size eos_token_id hidden_act
        hidden_dropout_prob initializer_range intermediate_size is_decoder layer_norm_eps num_hidden_layers
        pad_token_id summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type
        summary_use_proj tie_word_embeddings type_vocab_size use_cache vocab_size
    """,
    "gemma": """
        attention_bias attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size
        num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps tie_word_embeddings
        use_bidirectional_attention use_cache vocab_size
    """,
    "gemma2": """
        attention_bias attention_dropout attn_logit_softcapping bos_token_id eos_token_id final_logit_softcapping
        hidden_activation initializer_range intermediate_size layer_types num_hidden_layers num_key_value_heads
        pad_token_id query_pre_attn_scalar rms_norm_eps tie_word_embeddings use_bidirectional_attention use_cache
        vocab_size
    """,
    "gpt2": """
        activation_function add_cross_attention attn_pdrop bos_token_id embd_pdrop eos_token_id initializer_range
        layer_norm_epsilon n_embd n_head n_inner n_layer n_positions num_hidden_layers pad_token_id
        reorder_and_upcast_attn resid_pdrop scale_attn_by_inverse_layer_idx scale_attn_weights summary_activation
        summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type summary_use_proj
        tie_word_embeddings use_cache vocab_size
    """,
    "gpt_neo": """
        activation_function attention_dropout attention_layers attention_types bos_token_id embed_dropout eos_token_id
        initializer_range intermediate_size layer_norm_epsilon num_heads num_hidden_layers num_layers pad_token_id
        resid_dropout tie_word_embeddings use_cache vocab_size window_size
    """,
    "gpt_neox": """
        attention_bias attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size
        is_decoder layer_norm_eps num_hidden_layers pad_token_id rotary_emb_base rotary_pct tie_word_embeddings
        use_cache use_parallel_residual vocab_size
    """,
    "gptj": """
        activation_function attn_pdrop bos_token_id embd_pdrop eos_token_id initializer_range layer_norm_epsilon
        n_embd n_head n_inner n_layer n_positions num_hidden_layers pad_token_id resid_pdrop rotary_dim
        tie_word_embeddings use_cache vocab_size
    """,
    "llama": """
        attention_bias attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size
        mlp_bias num_hidden_layers num_key_value_heads pad_token_id pretraining_tp rms_norm_eps tie_word_embeddings
        use_cache vocab_size
    """,
    "marian": """
        activation_dropout activation_function attention_dropout bos_token_id d_model decoder_attention_heads
        decoder_ffn_dim decoder_layerdrop decoder_layers decoder_start_token_id decoder_vocab_size dropout
        encoder_attention_heads encoder_ffn_dim encoder_layerdrop encoder_layers eos_token_id forced_eos_token_id
        init_std is_decoder num_hidden_layers pad_token_id scale_embedding share_encoder_decoder_embeddings
        tie_word_embeddings use_cache vocab_size
    """,
    "mbart": """
        activation_dropout activation_function attention_dropout bos_token_id d_model decoder_attention_heads
        decoder_ffn_dim decoder_layerdrop decoder_layers decoder_start_token_id dropout encoder_attention_heads
        encoder_ffn_dim encoder_layerdrop encoder_layers eos_token_id forced_eos_token_id gradient_checkpointing
        init_std is_decoder num_hidden_layers pad_token_id scale_embedding tie_word_embeddings use_cache vocab_size
    """,
    "mistral": """
        attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size num_hidden_layers
        num_key_value_heads pad_token_id rms_norm_eps tie_word_embeddings use_cache vocab_size
    """,
    "mt5": """
        bos_token_id d_ff d_kv d_model decoder_start_token_id dense_act_fn dropout_rate eos_token_id feed_forward_proj
        initializer_factor is_decoder is_gated_act layer_norm_epsilon num_decoder_layers num_heads num_hidden_layers
        num_layers pad_token_id relative_attention_max_distance relative_attention_num_buckets tie_word_embeddings
        use_cache vocab_size
    """,
    "opt": """
        _remove_final_layer_norm activation_function attention_dropout bos_token_id do_layer_norm_before dropout
        enable_bias eos_token_id ffn_dim init_std layer_norm_elementwise_affine layerdrop num_hidden_layers
        pad_token_id tie_word_embeddings use_cache vocab_size word_embed_proj_dim
    """,
    "pegasus": """
        activation_dropout activation_function attention_dropout d_model decoder_attention_heads decoder_ffn_dim
        decoder_layerdrop decoder_layers decoder_start_token_id dropout encoder_attention_heads encoder_ffn_dim
        encoder_layerdrop encoder_layers eos_token_id forced_eos_token_id init_std is_decoder num_hidden_layers
        pad_token_id scale_embedding tie_word_embeddings use_cache vocab_size
    """,
    "qwen2": """
        attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size layer_types
        max_window_layers num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps tie_word_embeddings
        use_cache use_sliding_window vocab_size
    """,
    "qwen3": """
        attention_bias attention_dropout bos_token_id eos_token_id hidden_act initializer_range intermediate_size
        layer_types max_window_layers num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps
        tie_word_embeddings use_cache use_sliding_window vocab_size
    """,
    "roberta": """
        add_cross_attention attention_probs_dropout_prob bos_token_id eos_token_id hidden_act hidden_dropout_prob
        initializer_range intermediate_size is_decoder layer_norm_eps num_hidden_layers pad_token_id
        tie_word_embeddings type_vocab_size use_cache vocab_size
    """,
    "roformer": """
        add_cross_attention attention_probs_dropout_prob bos_token_id embedding_size eos_token_id hidden_act
        hidden_dropout_prob initializer_range intermediate_size is_decoder layer_norm_eps num_hidden_layers
        pad_token_id rotary_value summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels
        summary_type summary_use_proj tie_word_embeddings type_vocab_size use_cache vocab_size
    """,
    "t5": """
        d_ff d_kv d_model decoder_start_token_id dense_act_fn dropout_rate eos_token_id feed_forward_proj
        initializer_factor is_decoder is_gated_act layer_norm_epsilon num_decoder_layers num_heads num_hidden_layers
        num_layers pad_token_id relative_attention_max_distance relative_attention_num_buckets scale_decoder_outputs
        tie_word_embeddings use_cache vocab_size
    """,
    "umt5": """
        d_ff d_kv d_model decoder_start_token_id dense_act_fn dropout_rate eos_token_id feed_forward_proj
        initializer_factor is_decoder is_gated_act layer_norm_epsilon num_decoder_layers num_heads num_hidden_layers
        num_layers pad_token_id relative_attention_max_distance relative_attention_num_buckets tie_word_embeddings
        use_cache vocab_size
    """,
    "xlm-roberta": """
        add_cross_attention attention_probs_dropout_prob bos_token_id eos_token_id hidden_act hidden_dropout_prob
        initializer_range intermediate_size is_decoder layer_norm_eps num_hidden_layers pad_token_id
        tie_word_embeddings type_vocab_size use_cache vocab_size
    """,
}
KNOWN = {model_type: frozenset(names.split()) for model_type, names in _KNOWN.items()}
