"""The fields of config.json that transformers 5.24.0 uses, by model_type.

tools/known_fields.py writes this file.
"""

# The names of families, and the fields that they use; "" are those that all families use.
_KNOWN = """
: attention_chunk_size default_theta head_dim hidden_size is_causal max_position_embeddings
    num_attention_heads partial_rotary_factor per_layer_config rope_parameters rope_scaling
    rope_theta sliding_window token_classification_bias
albert: embedding_size hidden_act inner_group_num intermediate_size layer_norm_eps num_hidden_groups
    num_hidden_layers tie_word_embeddings type_vocab_size vocab_size
arcee helium llama: attention_bias hidden_act intermediate_size mlp_bias num_hidden_layers
    num_key_value_heads rms_norm_eps tie_word_embeddings vocab_size
bart blenderbot blenderbot-small mbart pegasus plbart: activation_function d_model
    decoder_attention_heads decoder_ffn_dim decoder_layers encoder_attention_heads encoder_ffn_dim
    encoder_layers is_decoder num_hidden_layers scale_embedding tie_word_embeddings vocab_size
bert camembert data2vec-text roberta roberta-prelayernorm xlm-roberta: add_cross_attention
    hidden_act intermediate_size is_decoder layer_norm_eps num_hidden_layers tie_word_embeddings
    type_vocab_size vocab_size
big_bird: add_cross_attention attention_type block_size hidden_act intermediate_size is_decoder
    layer_norm_eps num_hidden_layers num_random_blocks rescale_embeddings tie_word_embeddings
    type_vocab_size use_bias vocab_size
bloom: apply_residual_connection_post_layernorm layer_norm_epsilon n_embed n_head n_layer
    num_hidden_layers tie_word_embeddings vocab_size
clip_text_model: hidden_act image_size intermediate_size layer_norm_eps logit_scale_init_value
    num_channels num_hidden_layers patch_size projection_dim text_config vision_config vocab_size
cohere: attention_bias hidden_act intermediate_size layer_norm_eps logit_scale num_hidden_layers
    num_key_value_heads tie_word_embeddings use_qk_norm vocab_size
cohere2: attention_bias hidden_act intermediate_size layer_norm_eps layer_types logit_scale
    num_hidden_layers num_key_value_heads sliding_window_pattern tie_word_embeddings vocab_size
cwm: hidden_act intermediate_size layer_types mlp_bias num_hidden_layers num_key_value_heads
    rms_norm_eps tie_word_embeddings vocab_size
deberta: cls_dropout embedding_size hidden_act intermediate_size layer_norm_eps legacy
    max_relative_positions num_hidden_layers pooler_dropout pooler_hidden_act pooler_hidden_size
    pos_att_type position_biased_input relative_attention talking_head tie_word_embeddings
    type_vocab_size vocab_size
deberta-v2: attention_head_size cls_dropout conv_act conv_groups conv_kernel_size embedding_size
    hidden_act intermediate_size layer_norm_eps legacy max_relative_positions norm_rel_ebd
    num_hidden_layers pooler_dropout pooler_hidden_act pooler_hidden_size pos_att_type
    position_biased_input position_buckets relative_attention share_att_key tie_word_embeddings
    type_vocab_size vocab_size
deepseek_v2: attention_bias first_k_dense_replace hidden_act intermediate_size kv_lora_rank mlp_bias
    moe_intermediate_size n_group n_routed_experts n_shared_experts norm_topk_prob num_experts
    num_experts_per_tok num_hidden_layers num_key_value_heads output_router_logits q_lora_rank
    qk_nope_head_dim qk_rope_head_dim rms_norm_eps routed_scaling_factor tie_word_embeddings
    topk_group topk_method v_head_dim vocab_size
deepseek_v3: attention_bias first_k_dense_replace hidden_act intermediate_size kv_lora_rank
    moe_intermediate_size n_group n_routed_experts n_shared_experts norm_topk_prob
    num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts num_mtp_layers
    output_router_logits q_lora_rank qk_nope_head_dim qk_rope_head_dim rms_norm_eps rope_interleave
    routed_scaling_factor tie_word_embeddings topk_group v_head_dim vocab_size
distilbert: activation dim hidden_dim n_heads n_layers num_hidden_layers sinusoidal_pos_embds
    tie_word_embeddings vocab_size
electra: add_cross_attention embedding_size hidden_act intermediate_size is_decoder layer_norm_eps
    num_hidden_layers summary_activation summary_proj_to_labels summary_type summary_use_proj
    tie_word_embeddings type_vocab_size vocab_size
ernie: add_cross_attention hidden_act intermediate_size is_decoder layer_norm_eps num_hidden_layers
    task_type_vocab_size tie_word_embeddings type_vocab_size use_task_id vocab_size
ernie4_5: hidden_act intermediate_size num_hidden_layers num_key_value_heads rms_norm_eps
    tie_word_embeddings use_bias vocab_size
esm: add_cross_attention emb_layer_norm_before esmfold_config intermediate_size is_decoder
    is_folding_model layer_norm_eps mask_token_id num_hidden_layers position_embedding_type
    tie_word_embeddings token_dropout use_esm_attn_map vocab_list vocab_size
eurobert: attention_bias classifier_pooling hidden_act intermediate_size mask_token_id mlp_bias
    num_hidden_layers num_key_value_heads rms_norm_eps tie_word_embeddings vocab_size
exaone4: hidden_act intermediate_size layer_types num_hidden_layers num_key_value_heads rms_norm_eps
    sliding_window_pattern tie_word_embeddings vocab_size
falcon: activation alibi bias ffn_hidden_size layer_norm_epsilon multi_query n_embed
    new_decoder_architecture num_hidden_layers num_kv_heads num_ln_in_parallel_attn parallel_attn
    tie_word_embeddings vocab_size
gemma: attention_bias hidden_act intermediate_size num_hidden_layers num_key_value_heads
    rms_norm_eps tie_word_embeddings use_bidirectional_attention vocab_size
gemma2: attention_bias attn_logit_softcapping final_logit_softcapping hidden_activation
    intermediate_size layer_types num_hidden_layers num_key_value_heads query_pre_attn_scalar
    rms_norm_eps tie_word_embeddings use_bidirectional_attention vocab_size
gemma3_text: attention_bias attn_logit_softcapping final_logit_softcapping hidden_activation
    image_token_id intermediate_size layer_types mm_tokens_per_image num_hidden_layers
    num_key_value_heads query_pre_attn_scalar rms_norm_eps rope_local_base_freq
    sliding_window_pattern text_config tie_word_embeddings token_type_ids
    use_bidirectional_attention vision_config vocab_size
gemma4_text: attention_bias attention_context_left attention_context_right
    attention_invalid_logits_value attention_k_eq_v attention_logit_cap audio_config audio_token_id
    conv_kernel_size enable_moe_block final_logit_softcapping global_head_dim gradient_clipping
    hidden_act hidden_activation hidden_size_per_layer_input image_token_id intermediate_size
    kv_sharing_modes layer_types mm_token_type_ids moe_intermediate_size num_experts
    num_global_key_value_heads num_hidden_layers num_key_value_heads num_kv_shared_layers
    output_proj_dims patch_size pooling_kernel_size position_embedding_size residual_weight
    return_shared_kv_states rms_norm_eps shared_kv_states standardize subsampling_conv_channels
    text_config tie_word_embeddings top_k_experts use_bidirectional_attention use_clipped_linears
    use_double_wide_mlp video_token_id vision_config vocab_size vocab_size_per_layer_input
glm glm4 olmo2: attention_bias hidden_act intermediate_size num_hidden_layers num_key_value_heads
    rms_norm_eps tie_word_embeddings vocab_size
glm4_moe: attention_bias first_k_dense_replace hidden_act intermediate_size moe_intermediate_size
    n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok num_hidden_layers
    num_key_value_heads num_local_experts num_mtp_layers output_router_logits rms_norm_eps
    routed_scaling_factor tie_word_embeddings topk_group use_qk_norm vocab_size
glm4_moe_lite: attention_bias hidden_act intermediate_size kv_lora_rank mlp_layer_types
    moe_intermediate_size n_group n_routed_experts n_shared_experts norm_topk_prob
    num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts output_router_logits
    q_lora_rank qk_nope_head_dim qk_rope_head_dim rms_norm_eps rope_interleave routed_scaling_factor
    tie_word_embeddings topk_group v_head_dim vocab_size
gpt2: activation_function add_cross_attention layer_norm_epsilon n_embd n_head n_inner n_layer
    n_positions num_hidden_layers scale_attn_by_inverse_layer_idx scale_attn_weights
    summary_activation summary_proj_to_labels summary_type summary_use_proj tie_word_embeddings
    vocab_size
gpt_neo: activation_function attention_layers attention_types intermediate_size layer_norm_epsilon
    num_heads num_hidden_layers num_layers tie_word_embeddings vocab_size window_size
gpt_neox: attention_bias hidden_act intermediate_size is_decoder layer_norm_eps num_hidden_layers
    rotary_emb_base rotary_pct tie_word_embeddings use_parallel_residual vocab_size
gpt_oss: attention_bias hidden_act intermediate_size layer_types num_experts num_experts_per_tok
    num_hidden_layers num_key_value_heads num_local_experts output_router_logits rms_norm_eps
    router_aux_loss_coef swiglu_alpha swiglu_limit tie_word_embeddings vocab_size
gptj: activation_function layer_norm_epsilon n_embd n_head n_inner n_layer n_positions
    num_hidden_layers rotary_dim tie_word_embeddings vocab_size
granite: attention_bias attention_multiplier embedding_multiplier hidden_act intermediate_size
    logits_scaling mlp_bias num_hidden_layers num_key_value_heads residual_multiplier rms_norm_eps
    tie_word_embeddings vocab_size
granitemoehybrid: attention_bias attention_multiplier embedding_multiplier hidden_act
    intermediate_size layer_types layers_block_type logits_scaling mamba_chunk_size mamba_conv_bias
    mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups mamba_n_heads
    mamba_proj_bias num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts
    output_router_logits position_embedding_type residual_multiplier rms_norm_eps
    router_aux_loss_coef shared_intermediate_size tie_word_embeddings time_step_limit vocab_size
gte jina_embeddings_v3: hidden_act intermediate_size layer_norm_eps num_hidden_layers
    tie_word_embeddings type_vocab_size vocab_size
hyperclovax: attention_bias attention_multiplier embedding_multiplier hidden_act intermediate_size
    logits_scaling mlp_bias num_hidden_layers num_key_value_heads residual_multiplier rms_norm_eps
    tie_word_embeddings use_post_norm vocab_size
lfm2: block_auto_adjust_ff_dim block_ff_dim block_ffn_dim_multiplier block_multiple_of conv_L_cache
    conv_bias full_attn_idxs intermediate_size layer_types norm_eps num_hidden_layers
    num_key_value_heads tie_embedding tie_word_embeddings vocab_size
longformer: attention_window hidden_act intermediate_size layer_norm_eps num_hidden_layers
    onnx_export tie_word_embeddings type_vocab_size vocab_size
longt5: d_ff d_kv d_model dense_act_fn encoder_attention_type feed_forward_proj global_block_size
    is_decoder is_gated_act layer_norm_epsilon local_radius num_decoder_layers num_heads
    num_hidden_layers num_layers relative_attention_max_distance relative_attention_num_buckets
    scale_decoder_outputs tie_word_embeddings vocab_size
m2m_100: activation_function d_model decoder_attention_heads decoder_ffn_dim decoder_layers
    encoder_attention_heads encoder_ffn_dim encoder_layers num_hidden_layers scale_embedding
    tie_word_embeddings vocab_size
marian: activation_function d_model decoder_attention_heads decoder_ffn_dim decoder_layers
    decoder_vocab_size encoder_attention_heads encoder_ffn_dim encoder_layers is_decoder
    num_hidden_layers scale_embedding share_encoder_decoder_embeddings tie_word_embeddings
    vocab_size
minimax_m2: hidden_act intermediate_size num_experts num_experts_per_tok num_hidden_layers
    num_key_value_heads num_local_experts output_router_logits rms_norm_eps rotary_dim
    router_aux_loss_coef router_jitter_noise tie_word_embeddings vocab_size
ministral: hidden_act intermediate_size layer_types num_hidden_layers num_key_value_heads
    rms_norm_eps tie_word_embeddings vocab_size
ministral3 mistral: hidden_act intermediate_size num_hidden_layers num_key_value_heads rms_norm_eps
    tie_word_embeddings vocab_size
mixtral: hidden_act intermediate_size num_experts num_experts_per_tok num_hidden_layers
    num_key_value_heads num_local_experts output_router_logits rms_norm_eps router_aux_loss_coef
    router_jitter_noise tie_word_embeddings vocab_size
modernbert: attention_bias classifier_activation classifier_bias classifier_pooling cls_token_id
    decoder_bias deterministic_flash_attn embedding_dropout global_attn_every_n_layers
    global_rope_theta hidden_activation initializer_cutoff_factor intermediate_size layer_types
    local_attention local_rope_theta mlp_bias mlp_dropout norm_bias norm_eps num_hidden_layers
    sparse_pred_ignore_index sparse_prediction tie_word_embeddings vocab_size
modernbert-decoder: attention_bias classifier_activation classifier_bias cls_token_id decoder_bias
    embedding_dropout global_attn_every_n_layers global_rope_theta hidden_activation
    initializer_cutoff_factor intermediate_size layer_types local_attention local_rope_theta
    mlp_bias mlp_dropout norm_bias norm_eps num_hidden_layers tie_word_embeddings vocab_size
mpnet: hidden_act intermediate_size layer_norm_eps num_hidden_layers relative_attention_num_buckets
    tie_word_embeddings vocab_size
mt5: d_ff d_kv d_model dense_act_fn feed_forward_proj is_decoder is_gated_act layer_norm_epsilon
    num_decoder_layers num_heads num_hidden_layers num_layers relative_attention_max_distance
    relative_attention_num_buckets tie_word_embeddings vocab_size
nllb-moe: activation_function batch_prioritized_routing d_model decoder_attention_heads
    decoder_ffn_dim decoder_layers decoder_sparse_step encoder_attention_heads encoder_ffn_dim
    encoder_layers encoder_sparse_step expert_capacity moe_eval_capacity_token_fraction
    moe_token_dropout normalize_router_prob_before_dropping num_experts num_hidden_layers
    output_router_logits router_aux_loss_coef router_bias router_dtype router_ignore_padding_tokens
    router_z_loss_coef scale_embedding second_expert_policy tie_word_embeddings vocab_size
nomic_bert: hidden_act intermediate_size layer_norm_eps num_hidden_layers type_vocab_size vocab_size
olmo: attention_bias clip_qkv hidden_act intermediate_size num_hidden_layers num_key_value_heads
    tie_word_embeddings vocab_size
olmo3: attention_bias hidden_act intermediate_size layer_types num_hidden_layers num_key_value_heads
    rms_norm_eps tie_word_embeddings vocab_size
olmoe: attention_bias clip_qkv hidden_act intermediate_size norm_topk_prob num_experts
    num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts output_router_logits
    rms_norm_eps router_aux_loss_coef tie_word_embeddings vocab_size
opt: _remove_final_layer_norm activation_function do_layer_norm_before enable_bias ffn_dim
    layer_norm_elementwise_affine num_hidden_layers tie_word_embeddings vocab_size
    word_embed_proj_dim
phi: hidden_act intermediate_size layer_norm_eps num_hidden_layers num_key_value_heads qk_layernorm
    tie_word_embeddings vocab_size
phi3: hidden_act intermediate_size num_hidden_layers num_key_value_heads
    original_max_position_embeddings rms_norm_eps tie_word_embeddings vocab_size
qwen2: hidden_act intermediate_size layer_types max_window_layers num_hidden_layers
    num_key_value_heads rms_norm_eps tie_word_embeddings use_sliding_window vocab_size
qwen2_moe: decoder_sparse_step hidden_act intermediate_size layer_types max_window_layers
    mlp_only_layers moe_intermediate_size norm_topk_prob num_experts num_experts_per_tok
    num_hidden_layers num_key_value_heads output_router_logits qkv_bias rms_norm_eps
    router_aux_loss_coef shared_expert_intermediate_size tie_word_embeddings use_sliding_window
    vocab_size
qwen3: attention_bias hidden_act intermediate_size layer_types max_window_layers num_hidden_layers
    num_key_value_heads rms_norm_eps tie_word_embeddings use_sliding_window vocab_size
qwen3_5_moe_text: attention_bias cache cu_seq_lens_q depth full_attention_interval hidden_act
    image_grid_thw image_token_id in_channels intermediate_size layer_types linear_conv_kernel_dim
    linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    mm_token_type_ids moe_intermediate_size num_experts num_experts_per_tok num_heads
    num_hidden_layers num_key_value_heads num_position_embeddings out_hidden_size
    output_router_logits patch_size rms_norm_eps router_aux_loss_coef
    shared_expert_intermediate_size spatial_merge_size temporal_patch_size text_config
    tie_word_embeddings video_grid_thw video_token_id vision_config vocab_size
qwen3_5_text: attention_bias cache cu_seq_lens_q depth full_attention_interval hidden_act
    image_grid_thw image_token_id in_channels intermediate_size layer_types linear_conv_kernel_dim
    linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    mm_token_type_ids num_heads num_hidden_layers num_key_value_heads num_position_embeddings
    out_hidden_size patch_size rms_norm_eps spatial_merge_size temporal_patch_size text_config
    tie_word_embeddings video_grid_thw video_token_id vision_config vocab_size
qwen3_moe: attention_bias decoder_sparse_step hidden_act intermediate_size mlp_only_layers
    moe_intermediate_size norm_topk_prob num_experts num_experts_per_tok num_hidden_layers
    num_key_value_heads output_router_logits rms_norm_eps router_aux_loss_coef tie_word_embeddings
    use_sliding_window vocab_size
qwen3_next: attention_bias cu_seq_lens_q decoder_sparse_step full_attention_interval hidden_act
    intermediate_size layer_types linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
    linear_num_value_heads linear_value_head_dim mlp_only_layers moe_intermediate_size
    norm_topk_prob num_experts num_experts_per_tok num_hidden_layers num_key_value_heads
    output_router_logits rms_norm_eps router_aux_loss_coef shared_expert_intermediate_size
    tie_word_embeddings vocab_size
roformer: add_cross_attention embedding_size hidden_act intermediate_size is_decoder layer_norm_eps
    num_hidden_layers rotary_value summary_activation summary_proj_to_labels summary_type
    summary_use_proj tie_word_embeddings type_vocab_size vocab_size
seed_oss: attention_bias attention_out_bias hidden_act intermediate_size mlp_bias num_hidden_layers
    num_key_value_heads residual_dropout rms_norm_eps tie_word_embeddings vocab_size
siglip_text_model: hidden_act image_size intermediate_size layer_norm_eps num_channels
    num_hidden_layers patch_size projection_size text_config vision_config vision_use_head
    vocab_size
smollm3: attention_bias hidden_act intermediate_size layer_types mlp_bias no_rope_layer_interval
    no_rope_layers num_hidden_layers num_key_value_heads rms_norm_eps tie_word_embeddings
    use_sliding_window vocab_size
stablelm: hidden_act intermediate_size layer_norm_eps num_hidden_layers num_key_value_heads
    qk_layernorm tie_word_embeddings use_parallel_residual use_qkv_bias vocab_size
starcoder2: embedding_dropout hidden_act intermediate_size norm_epsilon num_hidden_layers
    num_key_value_heads residual_dropout tie_word_embeddings use_bias vocab_size
switch_transformers: add_cross_attention add_router_probs d_ff d_kv d_model decoder_sparse_step
    dense_act_fn encoder_sparse_step expert_capacity is_decoder layer_norm_epsilon
    num_decoder_layers num_experts num_heads num_hidden_layers num_layers num_sparse_decoder_layers
    num_sparse_encoder_layers relative_attention_max_distance relative_attention_num_buckets
    router_aux_loss_coef router_bias router_dtype router_ignore_padding_tokens router_jitter_noise
    router_z_loss_coef tie_word_embeddings vocab_size
t5 umt5: d_ff d_kv d_model dense_act_fn feed_forward_proj is_decoder is_gated_act layer_norm_epsilon
    num_decoder_layers num_heads num_hidden_layers num_layers relative_attention_max_distance
    relative_attention_num_buckets scale_decoder_outputs tie_word_embeddings vocab_size
t5gemma: attention_bias attn_logit_softcapping cache classifier_dropout_rate
    cross_attention_hidden_size decoder encoder hidden_activation intermediate_size is_decoder
    layer_types num_hidden_layers num_key_value_heads query_pre_attn_scalar rms_norm_eps
    tie_word_embeddings vocab_size
vaultgemma: attention_bias attn_logit_softcapping final_logit_softcapping hidden_activation
    intermediate_size layer_types num_hidden_layers num_key_value_heads query_pre_attn_scalar
    rms_norm_eps tie_word_embeddings vocab_size
xglm: activation_function add_cross_attention attention_heads d_model ffn_dim num_hidden_layers
    num_layers scale_embedding tie_word_embeddings vocab_size
"""


# The rates of dropout that their classes have where config.json says none.
_RATES = """
albert nomic_bert: attention_probs_dropout_prob=0.0 hidden_dropout_prob=0.0
arcee clip_text_model cohere cohere2 cwm deepseek_v2 deepseek_v3 eurobert exaone4 gemma gemma2
    gemma3_text gemma4_text glm glm4 glm4_moe glm4_moe_lite gpt_oss granite granitemoehybrid helium
    hyperclovax llama minimax_m2 ministral ministral3 mistral mixtral olmo olmo2 olmo3 olmoe qwen2
    qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next siglip_text_model smollm3
    vaultgemma: attention_dropout=0.0
bart blenderbot blenderbot-small marian mbart pegasus: activation_dropout=0.0 attention_dropout=0.0
    dropout=0.1
bert big_bird camembert data2vec-text deberta deberta-v2 electra ernie esm jina_embeddings_v3
    longformer mpnet roberta roberta-prelayernorm roformer xlm-roberta:
    attention_probs_dropout_prob=0.1 hidden_dropout_prob=0.1
bloom falcon gpt_neox stablelm: attention_dropout=0.0 hidden_dropout=0.0
distilbert: attention_dropout=0.1 dropout=0.1
gpt2: attn_pdrop=0.1 embd_pdrop=0.1 resid_pdrop=0.1
gpt_neo: attention_dropout=0.0 embed_dropout=0.0 resid_dropout=0.0
gptj: attn_pdrop=0.0 embd_pdrop=0.0 resid_pdrop=0.0
gte: attention_probs_dropout_prob=0.0 hidden_dropout_prob=0.1
longt5 mt5 switch_transformers t5 umt5: dropout_rate=0.1
m2m_100 nllb-moe plbart xglm: activation_dropout=0.0 attention_dropout=0.1 dropout=0.1
modernbert modernbert-decoder: attention_dropout=0.0 embedding_dropout=0.0 mlp_dropout=0.0
opt: attention_dropout=0.0 dropout=0.1
phi phi3: attention_dropout=0.0 embd_pdrop=0.0 resid_pdrop=0.0
seed_oss: attention_dropout=0.1 residual_dropout=0.1
starcoder2: attention_dropout=0.0 embedding_dropout=0.0 residual_dropout=0.0
t5gemma: attention_dropout=0.0 dropout_rate=0.0
"""


def _parse(table: str) -> dict[str, frozenset[str]]:
    fields = {}
    for row in table.strip().replace("\n    ", " ").splitlines():
        model_types, _, names = row.partition(":")
        for model_type in model_types.split(" "):
            fields[model_type] = frozenset(names.split())
    return fields


KNOWN = _parse(_KNOWN)
RATES = {}
for _model_type, _rates in _parse(_RATES).items():
    RATES[_model_type] = {name: float(x) for name, _, x in (r.partition("=") for r in _rates)}
